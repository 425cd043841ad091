#include "worker/collective/nccl/cuda_parts.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <bit>

namespace ddprun::worker {

void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw CollectiveError(fmt::format("{}: CUDA: {}", doing, cudaGetErrorString(status)));
}

void allocate_twice(std::size_t bytes, const std::function<std::string()>& allocate,
                    const std::function<void()>& make_room) {
  std::string why = allocate();
  if (why.empty()) return;
  if (make_room) {
    make_room();
    why = allocate();
  }
  // Our failure stays CUDA's last error, and LibTorch would take it for that of its next kernel.
  cudaGetLastError();
  if (why.empty()) return;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess)
    why += fmt::format(": {} bytes are wanted, {} of {} are free", bytes, free, total);
  throw CollectiveError("allocate GPU memory: " + why);
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "look at a stream");
  return status != cudaStreamCaptureStatusNone;
}

void* gpu_memory(std::size_t bytes, const std::function<void()>& make_room) {
  void* memory = nullptr;
  const auto allocate = [&]() -> std::string {
    const cudaError_t status = cudaMalloc(&memory, bytes);
    return status == cudaSuccess ? "" : fmt::format("CUDA: {}", cudaGetErrorString(status));
  };
  allocate_twice(bytes, allocate, make_room);
  return memory;
}

void Staging::reserve(std::size_t bytes, const std::function<void()>& make_room) {
  if (bytes <= bytes_) return;
  release();
  const std::size_t length = std::bit_ceil(bytes);
  gpu_ = static_cast<std::byte*>(gpu_memory(length, make_room));
  void* memory = nullptr;
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
