#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

#include "worker/training/graphs/step_graph.h"

namespace ddprun::worker {
namespace {

// Work that `then` gets from now on starts after the work that `first` holds.
void put_in_order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
  at::cuda::CUDAEvent reached;
  reached.record(first);
  reached.block(then);
}

// The stream waits for the current one, which waits for it at the end, whatever is thrown.
class Aside {
 public:
  explicit Aside(const c10::cuda::CUDAStream& stream) : stream_(stream) {
    put_in_order(current_, stream_);
    guard_.emplace(stream_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  Aside(Aside&&) = delete;
  Aside& operator=(Aside&&) = delete;
  ~Aside() {
    guard_.reset();
    try {
      put_in_order(stream_, current_);
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): CUDA's next call says it, too
    }
  }

 private:
  c10::cuda::CUDAStream current_ = c10::cuda::getCurrentCUDAStream();
  c10::cuda::CUDAStream stream_;
  std::optional<c10::cuda::CUDAStreamGuard> guard_;
};

class CudaStepGraph final : public StepGraph {
 public:
  void run(const Step& step) override {
    const Aside aside(stream_);
    step();
  }

  // A graph has memory of its own, and a capture cannot free what LibTorch keeps of the warm-ups.
  // Other threads of the process go on as they were: the mode concerns this one alone.
  void capture(const Step& step) override {
    put_in_order(c10::cuda::getCurrentCUDAStream(), stream_);
    stream_.synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      step();
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  // The capture may be broken already. Then to end it fails, and the allocator has to be told.
  void give_up() noexcept {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
      try {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(stream_.device_index(), pool_);
      } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): it knows already
      }
    }
  }

  c10::cuda::CUDAStream stream_ = c10::cuda::getStreamFromPool();
  at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(Device device) {
  if (device == Device::kCpu) return nullptr;
  return std::make_unique<CudaStepGraph>();
}

}  // namespace ddprun::worker
