// The little of CUDA's runtime that the NCCL collective needs. Errors are CollectiveError, with
// CUDA's words. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ddprun::worker {

// Throws unless `status` is success. `doing`: what failed, "make an event".
void check_cuda(cudaError_t status, const char* doing);

// The streams of the program, from LibTorch; tests give their own.
struct GpuStreams {
  // A new stream for a collective. Its maker keeps it for life.
  std::function<cudaStream_t()> make;
  // The calling thread's current stream. It changes, so it is asked each time.
  std::function<cudaStream_t()> current;
};

// This thread makes calls that CUDA forbids while another one captures a graph: they would break
// it. They concern no stream that is captured.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  BesideCaptures(BesideCaptures&&) = delete;
  BesideCaptures& operator=(BesideCaptures&&) = delete;
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Says whether what `stream` gets becomes part of a graph.
bool is_captured(cudaStream_t stream);

// Marks a place in a stream. Without timing it is cheaper to record and to query.
class Event {
 public:
  Event() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
  }
  explicit Event(cudaStream_t stream) : Event() { record(stream); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "record an event");
  }
  // Makes the later work of `stream` start only after the mark. The host does not wait.
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

// Memory that graphs use, for as long as they live. CUDA says that a graph is gone on a thread of
// its own, which must make no call. So memory then waits for the collective's next call. Any
// thread; a shared pointer owns it.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  // The graph that `stream` is captured into shares it from now on.
  void keep(cudaStream_t stream, std::shared_ptr<std::byte> memory);
  // Drops the memory of graphs that are gone.
  void let_go();

 private:
  struct Kept {
    std::shared_ptr<GraphMemory> owner;
    std::shared_ptr<std::byte> memory;
  };
  static void CUDART_CB graph_is_gone(void* kept);

  std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> left_;
};

// Bytes on the GPU, and as many in host memory that the GPU reads and writes by itself. A copy
// between the two blocks nobody. It grows only while no copy is under way. Not movable.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  Staging(Staging&&) = delete;
  Staging& operator=(Staging&&) = delete;
  ~Staging() { release(); }

  void reserve(std::size_t bytes);
  std::byte* gpu() const { return gpu_; }
  std::byte* host() const { return host_; }

 private:
  void release() noexcept;

  std::byte* gpu_ = nullptr;
  std::byte* host_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ddprun::worker
