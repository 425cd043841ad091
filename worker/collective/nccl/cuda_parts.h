// The little of CUDA's runtime that the NCCL collective needs. Errors are CollectiveError, with
// CUDA's words. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace ddprun::worker {

// Throws unless `status` is success. `doing`: what failed, "make an event".
void check_cuda(cudaError_t status, const char* doing);

// A collective shares its GPU with the program, and asks it for this. It is LibTorch's; tests give
// their own.
struct GpuProgram {
  // A new stream for a collective. Its maker keeps it for life.
  std::function<cudaStream_t()> make;
  // The calling thread's current stream. It changes, so it is asked each time.
  std::function<cudaStream_t()> current;
  // Gives back to the driver what the program keeps of this GPU and does not use. May be empty.
  std::function<void()> give_back{};
};

// Asks `allocate` for memory of the GPU. It answers why there is none, or the empty text. Then
// `make_room` is called, if there is one, and `allocate` once more. Throws CollectiveError if that
// fails, too: it has the reason and the GPU's numbers.
void allocate_twice(std::size_t bytes, const std::function<std::string()>& allocate,
                    const std::function<void()>& make_room);

// Memory of the current GPU, by cudaMalloc() and allocate_twice(). Throws CollectiveError.
void* gpu_memory(std::size_t bytes, const std::function<void()>& make_room);

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

// This thread makes its calls on `gpu`, beside captures, whatever its device is. It gets that back.
// Errors show in those calls.
class OnGpu {
 public:
  explicit OnGpu(int gpu) : gpu_(gpu), before_(gpu) {
    cudaGetDevice(&before_);
    if (before_ != gpu_) cudaSetDevice(gpu_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  OnGpu(OnGpu&&) = delete;
  OnGpu& operator=(OnGpu&&) = delete;
  ~OnGpu() {
    if (before_ != gpu_) cudaSetDevice(before_);
  }

 private:
  const int gpu_;
  int before_;
  const BesideCaptures beside_;
};

// Says whether what `stream` gets becomes part of a graph.
bool is_captured(cudaStream_t stream);

// Marks a place in a stream of the thread's GPU. Without timing it is cheaper to record and to
// query. The process keeps what goes for the next one: each sum has two.
class Event {
 public:
  Event();
  explicit Event(cudaStream_t stream) : Event() { record(stream); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)), gpu_(other.gpu_) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(gpu_, other.gpu_);
    return *this;
  }
  ~Event();

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
  // The host waits for the mark.
  void wait() const { check_cuda(cudaEventSynchronize(event_), "wait for the GPU"); }

 private:
  cudaEvent_t event_ = nullptr;
  int gpu_ = 0;
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

  void reserve(std::size_t bytes, const std::function<void()>& make_room);
  std::byte* gpu() const { return gpu_; }
  std::byte* host() const { return host_; }
  // The GPU may hang: to free it would wait.
  void abandon() { gpu_ = host_ = nullptr; }

 private:
  void release() noexcept;

  std::byte* gpu_ = nullptr;
  std::byte* host_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ddprun::worker
