#include "worker/collective/nccl/nccl_optional.h"

#include <dlfcn.h>

namespace ddprun::worker {
namespace {

template <typename Function>
void find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

NcclOptional find_nccl_optional() {
  NcclOptional found;
  find(found.revoke, "ncclCommRevoke");
  find(found.split, "ncclCommSplit");
  find(found.allocate, "ncclMemAlloc");
  find(found.free, "ncclMemFree");
  find(found.add, "ncclCommRegister");
  find(found.remove, "ncclCommDeregister");
  return found;
}

}  // namespace ddprun::worker
