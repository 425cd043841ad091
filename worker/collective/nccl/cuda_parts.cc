#include "worker/collective/nccl/cuda_parts.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <bit>

namespace ddprun::worker {

void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw CollectiveError(fmt::format("{}: CUDA: {}", doing, cudaGetErrorString(status)));
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "look at a stream");
  return status != cudaStreamCaptureStatusNone;
}

void Staging::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  release();
  const std::size_t length = std::bit_ceil(bytes);
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, length), "allocate GPU memory");
  gpu_ = static_cast<std::byte*>(memory);
  check_cuda(cudaMallocHost(&memory, length), "allocate host memory for the GPU");
  host_ = static_cast<std::byte*>(memory);
  bytes_ = length;
}

void Staging::release() noexcept {
  bytes_ = 0;
  if (gpu_ != nullptr) cudaFree(std::exchange(gpu_, nullptr));
  if (host_ != nullptr) cudaFreeHost(std::exchange(host_, nullptr));
}

}  // namespace ddprun::worker
