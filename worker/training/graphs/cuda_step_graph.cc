#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "worker/training/graphs/step_graph.h"

namespace ddprun::worker {
namespace {

// Work that `then` gets from now on starts after the work that `first` holds.
void put_in_order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
  at::cuda::CUDAEvent reached;
  reached.record(first);
  reached.block(then);
}

class CudaStepGraph final : public StepGraph {
 public:
  void run(const Step& step) override {
    const auto current = c10::cuda::getCurrentCUDAStream();
    put_in_order(current, stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      step();
    }
    put_in_order(stream_, current);
  }

  // Other threads of the process go on as they were: the mode concerns this one alone.
  void capture(const Step& step) override {
    put_in_order(c10::cuda::getCurrentCUDAStream(), stream_);
    stream_.synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      step();
    } catch (...) {
      give_up();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  // The capture may be broken already. Then to end it fails, too.
  void give_up() noexcept {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): the step's own error counts
    }
  }

  c10::cuda::CUDAStream stream_ = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(Device device) {
  if (device == Device::kCpu) return nullptr;
  return std::make_unique<CudaStepGraph>();
}

}  // namespace ddprun::worker
