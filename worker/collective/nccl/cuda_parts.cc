#include "worker/collective/nccl/cuda_parts.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <bit>
#include <map>
#include <mutex>
#include <vector>

namespace ddprun::worker {
namespace {

// Events that nobody has, of each GPU. They live as long as the process.
class SpareEvents {
 public:
  // Returns null if there is none.
  cudaEvent_t take(int gpu) {
    const std::lock_guard lock(mutex_);
    auto& events = by_gpu_[gpu];
    if (events.empty()) return nullptr;
    cudaEvent_t const event = events.back();
    events.pop_back();
    return event;
  }
  void put(int gpu, cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    by_gpu_[gpu].push_back(event);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<cudaEvent_t>> by_gpu_;
};
SpareEvents& spare_events() {
  static auto* const kept = new SpareEvents;
  return *kept;
}

}  // namespace

void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw CollectiveError(fmt::format("{}: CUDA: {}", doing, cudaGetErrorString(status)));
}

Event::Event() {
  check_cuda(cudaGetDevice(&gpu_), "make an event");
  event_ = spare_events().take(gpu_);
  if (event_ == nullptr)
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
}

// Streams that wait for it have its mark already: a later record changes nothing for them.
Event::~Event() {
  if (event_ != nullptr) spare_events().put(gpu_, event_);
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
