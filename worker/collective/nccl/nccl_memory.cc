#include "worker/collective/nccl/nccl_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/log.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kProbeBytes = 4096;

}  // namespace

// A registration that fails leaves the communicator usable, or the next call finds that it does
// not.
bool NcclMemory::can_register() const {
  std::string why = "this NCCL has no ncclMemAlloc and ncclCommRegister";
  if (optional_.can_register()) {
    void* memory = nullptr;
    ncclResult_t result = optional_.allocate(&memory, kProbeBytes);
    if (result == ncclSuccess) {
      void* handle = nullptr;
      result = communicator_->try_add(memory, kProbeBytes, &handle);
      if (result == ncclSuccess) communicator_->remove(handle);
      optional_.free(memory);
    }
    if (result == ncclSuccess) return true;
    why = ncclGetErrorString(result);
  }
  log::debug("buckets are not registered with NCCL: " + why);
  return false;
}

std::shared_ptr<std::byte> NcclMemory::plain(std::size_t bytes) const {
  void* memory = gpu_memory(bytes, [this] { dropped_->make_room(); });
  return dropped_->own(static_cast<std::byte*>(memory), [memory] { cudaFree(memory); });
}

// It may outlive the communicator.
std::shared_ptr<std::byte> NcclMemory::registered(std::size_t bytes) const {
  void* memory = nullptr;
  const auto allocate = [&]() -> std::string {
    const ncclResult_t result = optional_.allocate(&memory, bytes);
    return result == ncclSuccess ? "" : fmt::format("NCCL: {}", ncclGetErrorString(result));
  };
  allocate_twice(bytes, allocate, [this] { dropped_->make_room(); });
  void* handle = nullptr;
  try {
    handle = communicator_->add(memory, bytes);
  } catch (const CollectiveError&) {
    optional_.free(memory);
    throw;
  }
  return dropped_->own(static_cast<std::byte*>(memory),
                       [=, communicator = communicator_, free = optional_.free] {
                         communicator->remove(handle);
                         free(memory);
                       });
}

std::shared_ptr<std::byte> NcclMemory::allocate(std::size_t bytes, cudaStream_t stream) {
  std::erase_if(allocations_, [](const Allocation& made) { return made.memory.expired(); });
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  auto memory = registers_ ? registered(length) : plain(length);
  check_cuda(cudaMemsetAsync(memory.get(), 0, length, stream), "clear GPU memory");
  allocations_.push_back({memory, bytes});
  return memory;
}

bool NcclMemory::is_registered(const Flat& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.data);
  return registers_ && std::ranges::any_of(allocations_, [&](const Allocation& made) {
           const auto memory = made.memory.lock();
           return memory != nullptr && data < memory.get() + made.bytes &&
                  memory.get() < data + flat.bytes();
         });
}

std::shared_ptr<std::byte> NcclMemory::owner_of(const Flat& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.data);
  for (const Allocation& made : allocations_) {
    auto memory = made.memory.lock();
    if (memory == nullptr || data < memory.get()) continue;
    if (data + flat.bytes() <= memory.get() + made.bytes) return memory;
  }
  throw CollectiveError("sum of memory that did not come from allocate()");
}

}  // namespace ddprun::worker
