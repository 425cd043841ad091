// The GPU's part of a captured step.
#pragma once

#include <ddprun/collective.h>

#include <functional>
#include <memory>

namespace ddprun::worker {

// One step, on a stream of its own until it is captured. That stream waits for the current one, and
// the current one for it. The training thread.
class StepGraph {
 public:
  using Step = std::function<void()>;

  StepGraph() = default;
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  StepGraph(StepGraph&&) = delete;
  StepGraph& operator=(StepGraph&&) = delete;
  virtual ~StepGraph() = default;

  // Runs the step as it is. Throws what it throws.
  virtual void run(const Step& step) = 0;
  // Captures the step, and runs nothing. The host waits for the stream before. Once. Throws what
  // the step throws, and LibTorch's errors. No capture is under way then.
  virtual void capture(const Step& step) = 0;
  // Runs what is captured, on the current stream.
  virtual void replay() = 0;
};

// Null where the ranks have no GPUs.
std::unique_ptr<StepGraph> make_step_graph(Device device);

}  // namespace ddprun::worker
