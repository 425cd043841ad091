// When a step runs as it is, when it is captured, and when it is replayed. CapturedStep owns it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "worker/training/graphs/step_graph.h"
#include "worker/training/zero/step_counts.h"

namespace ddprun::worker {

class StepRunner {
 public:
  // `graph`: null where the step is never captured. `ranks` must outlive it.
  StepRunner(std::function<at::Tensor()> step, Collective& ranks, int warm_ups,
             std::unique_ptr<StepGraph> graph)
      : step_(std::move(step)), ranks_(ranks), warm_ups_(warm_ups), graph_(std::move(graph)) {}

  // Makes a step, as CapturedStep's call says.
  at::Tensor run();
  bool is_captured() const { return captured_; }

 private:
  at::Tensor run_as_it_is();
  void capture();
  std::string try_to_capture();
  void agree(const std::string& why_not);

  std::function<at::Tensor()> step_;
  Collective& ranks_;
  int warm_ups_;  // that are left
  std::unique_ptr<StepGraph> graph_;
  StepCounts counts_;
  at::Tensor result_;  // of the captured step
  bool captured_ = false;
  std::string failure_;  // of the capture, on any rank
};

}  // namespace ddprun::worker
