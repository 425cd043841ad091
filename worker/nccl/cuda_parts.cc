#include "worker/nccl/cuda_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/collective/collective.h"

namespace ddprun::worker {

void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw CollectiveError(fmt::format("{}: CUDA: {}", doing, cudaGetErrorString(status)));
}

std::shared_ptr<std::byte> device_memory(std::size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "allocate GPU memory");
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory),
                                   [](std::byte* allocated) { cudaFree(allocated); });
  check_cuda(cudaMemset(memory, 0, bytes), "clear GPU memory");
  // The clearing runs on the legacy stream, and our stream does not wait for that one.
  check_cuda(cudaDeviceSynchronize(), "clear GPU memory");
  return owner;
}

}  // namespace ddprun::worker
