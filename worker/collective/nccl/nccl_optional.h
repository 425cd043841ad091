// Functions that only some releases of NCCL have. They are looked up when the program runs. The
// library that torch loads may be older or newer than our header.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace ddprun::worker {

// Null if this library has no such function.
struct NcclOptional {
  ncclResult_t (*revoke)(ncclComm_t, int flags) = nullptr;  // ncclCommRevoke, from 2.28.7 on
  // ncclCommSplit, from 2.18 on
  ncclResult_t (*split)(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*) = nullptr;
  ncclResult_t (*allocate)(void**, std::size_t) = nullptr;  // ncclMemAlloc, from 2.19 on
  ncclResult_t (*free)(void*) = nullptr;
  ncclResult_t (*add)(ncclComm_t, void*, std::size_t, void** handle) = nullptr;  // ncclCommRegister
  ncclResult_t (*remove)(ncclComm_t, void* handle) = nullptr;

  bool can_register() const {
    return allocate != nullptr && free != nullptr && add != nullptr && remove != nullptr;
  }
};

// Those of the library that this process has loaded.
NcclOptional find_nccl_optional();

}  // namespace ddprun::worker
