#include <ATen/core/grad_mode.h>

#include <stdexcept>

#include "worker/reducer/gradient_reducer.h"

namespace ddprun::worker {

void GradientReducer::shadow_pass() {
  const at::NoGradGuard no_grad;
  if (options_.graph == GraphMode::kStatic && readiness_->waits_for_end()) {
    throw std::runtime_error(
        "Join: with static_graph each rank needs a batch of its own first: it counts gradients "
        "there");
  }
  if (options_.skip_unused_buckets && passes_summed_ == 0) {
    throw std::runtime_error(
        "Join: with skip_all_reduce_unused_params each rank needs a batch of its own first: it "
        "learns "
        "there what is left out");
  }
  failed_ = true;  // until all is well
  queue_.rearm();
  sums_.begin_again();
  given_back_ = 0;
  armed_ = unfinished_ = true;
  told_ = false;
  ++pass_;
  // With a static graph the use that the first pass has summed holds for all.
  if (used_ && readiness_->use_changes()) used_->clear();
  for (const auto& [name, tensor] : buckets_.parameters()) tensor.mutable_grad().reset();
  for (std::size_t i = 0; i < buckets_.sizes().size(); ++i) mark_ready(i);
  launch_ready_buckets();
  if (readiness_->asks_for_use()) used_->launch_sum();
  finish();
  // As PyTorch's _push_all_rebuilt_params: should this be rank 0, its order counts.
  if (rebuilt_ || readiness_->use_changes()) return;
  rebuild_order_.clear();
  for (std::size_t i = 0; i < buckets_.sizes().size(); ++i) rebuild_order_.push_back(i);
}

}  // namespace ddprun::worker
