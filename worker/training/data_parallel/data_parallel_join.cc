// DataParallel as a Joinable (torch/nn/parallel/distributed.py of 2.11, _DDPJoinHook).
#include <ddprun/data_parallel.h>

#include <stdexcept>

#include "worker/training/data_parallel/gradient_reducer.h"

namespace ddprun {

using namespace worker;

void DataParallel::begin_join(JoinContext& context, bool leads) {
  if (join_ != nullptr) throw std::invalid_argument("Join: the DataParallel is in a Join already");
  if (buffer_hook_)
    throw std::invalid_argument(
        "Join: a rank without batches cannot take part in buffer_hook(): leave one of the two out");
  join_ = &context;
  leads_join_ = leads;
  was_joined_ = true;
  uneven_ = false;
}

JoinIteration DataParallel::meet_joined(const JoinReport& mine) {
  JoinIteration round = join_->meet(mine);
  see_round(round);
  if (!join_->options().divide_by_initial_world_size) reducer_->divide_by(round.active);
  return round;
}

// A rank without batches makes no steps. Its weights are set at the end. Its optimizer's state is
// set by the first step after it.
void DataParallel::see_round(const JoinIteration& round) {
  all_active_ = round.active == round.ranks;
  if (all_active_) return;
  uneven_ = true;
  reducer_->stop_comparing();
}

void DataParallel::shadow(const JoinIteration& leading) {
  if (leads_join_) see_round(leading);
  const JoinIteration round = leads_join_ ? leading : meet_joined({.active = false});
  if (leads_join_ && !join_->options().divide_by_initial_world_size)
    reducer_->divide_by(round.active);
  if (round.records) reducer_->begin_pass();
  sync_buffers(BufferMoment::kBeforeForward, round.source);
  buffers_due_ = round.synchronises;
  if (round.synchronises) reducer_->shadow_pass();
}

void DataParallel::settle(int source) {
  std::vector<NamedTensor> state;
  for (const auto& [name, tensor, trained] : parameters_) state.push_back({name, tensor});
  if (options_.broadcast_buffers) {
    for (NamedTensor& buffer : buffers_of(*module_, options_.ignore))
      state.push_back(std::move(buffer));
  }
  for (const at::Tensor& copy : copies_) state.push_back({"", copy});
  broadcast_values(state, *collective_, source);
  reducer_->start_comparing();
  if (!uneven_) return;
  state_of_ = source;
  shared_.clear();
}

void DataParallel::end_join() noexcept {
  join_ = nullptr;
  all_active_ = true;
  reducer_->divide_by(collective_->world_size());
}

}  // namespace ddprun
