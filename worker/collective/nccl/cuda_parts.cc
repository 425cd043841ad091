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

void GraphMemory::keep(cudaStream_t stream, std::shared_ptr<std::byte> memory) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph), "look at a capture");
  auto kept = std::make_unique<Kept>(Kept{shared_from_this(), std::move(memory)});
  cudaUserObject_t object = nullptr;
  check_cuda(
      cudaUserObjectCreate(&object, kept.get(), graph_is_gone, 1, cudaUserObjectNoDestructorSync),
      "keep memory for a graph");
  kept.release();  // NOLINT(bugprone-unused-return-value): it is the object's
  const cudaError_t given = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (given != cudaSuccess) cudaUserObjectRelease(object, 1);
  check_cuda(given, "keep memory for a graph");
}

void GraphMemory::graph_is_gone(void* kept) {
  const std::unique_ptr<Kept> gone(static_cast<Kept*>(kept));
  const std::lock_guard lock(gone->owner->mutex_);
  gone->owner->left_.push_back(std::move(gone->memory));
}

void GraphMemory::let_go() {
  std::vector<std::shared_ptr<std::byte>> left;
  const std::lock_guard lock(mutex_);
  left.swap(left_);
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
