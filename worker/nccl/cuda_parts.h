// The little of CUDA's runtime that the NCCL collective needs. Errors are CollectiveError, with CUDA's
// words. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace ddprun::worker {

// Throws unless `status` is success. `doing`: what failed, "make an event".
void check_cuda(cudaError_t status, const char* doing);

// Marks a place in a stream. Without timing it is cheaper to record and to query.
class Event {
 public:
  Event() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "record an event");
  }
  // What `stream` gets from now on starts only after the mark. The host does not wait.
  void hold(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "order streams");
  }
  bool passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) check_cuda(status, "wait for a collective");
    return status == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Zeroed memory of the current GPU, at least a byte. The clearing is done on return.
std::shared_ptr<std::byte> device_memory(std::size_t bytes);

}  // namespace ddprun::worker
