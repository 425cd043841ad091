#include "worker/training/pipeline/pipeline_plan.h"

#include <algorithm>
#include <utility>

namespace ddprun::worker {
namespace {

using Kind = PipelineAction::Kind;

class Plan {
 public:
  Plan(int stage, int stages) : first_(stage == 0), last_(stage == stages - 1) {}

  void receive_input(int micro_batch) { add_unless(first_, Kind::kReceiveInput, micro_batch); }
  void forward(int micro_batch) {
    add_unless(false, Kind::kForward, micro_batch);
    add_unless(last_, Kind::kSendOutput, micro_batch);
  }
  void backward(int micro_batch) {
    add_unless(last_, Kind::kReceiveGradient, micro_batch);
    add_unless(false, Kind::kBackward, micro_batch);
  }
  void send_gradient(int micro_batch) { add_unless(first_, Kind::kSendGradient, micro_batch); }

  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  void add_unless(bool left_out, Kind kind, int micro_batch) {
    if (!left_out) actions_.push_back({kind, micro_batch});
  }

  bool first_, last_;
  std::vector<PipelineAction> actions_;
};

int warm_up_of(PipelineOrder order, int stages_left, int micro_batches) {
  const bool turns = order == PipelineOrder::kOneForwardOneBackward;
  return turns ? std::min(micro_batches, stages_left) : micro_batches;
}

}  // namespace

std::vector<PipelineAction> plan_pipeline(PipelineOrder order, int stage, int stages,
                                          int micro_batches) {
  Plan plan(stage, stages);
  int next = 0;  // forward
  for (const int warm_up = warm_up_of(order, stages - stage, micro_batches); next < warm_up;
       ++next) {
    plan.receive_input(next);
    plan.forward(next);
  }
  if (order == PipelineOrder::kForwardOnly) return plan.take();
  for (int done = 0; done < micro_batches; ++done) {
    plan.backward(done);
    const bool more = next < micro_batches;
    // The stage before may have this activation ready, and wait with it. It takes the gradient
    // behind that.
    if (more) plan.receive_input(next);
    plan.send_gradient(done);
    if (more) plan.forward(next++);
  }
  return plan.take();
}

}  // namespace ddprun::worker
