#include <ddprun/zero_optimizer.h>

#include <utility>

#include "worker/training/zero/shards.h"

namespace ddprun {

ZeroShards::ZeroShards(std::vector<std::vector<at::Tensor>> groups, Collective& ranks)
    : shards_(std::make_unique<worker::Shards>(std::move(groups), ranks)) {}

ZeroShards::~ZeroShards() = default;

std::vector<std::vector<at::Tensor>> ZeroShards::owned_by(int rank) const {
  return shards_->owned_by(rank);
}

CommHook ZeroShards::reduce_scatter() {
  shards_->use_one_copy();
  return shards_->hook();
}

void ZeroShards::begin_step() { shards_->begin_step(); }

void ZeroShards::share() { shards_->share(); }

std::vector<std::string> ZeroShards::gather_states(int to,
                                                   const torch::optim::Optimizer& local) const {
  return worker::gather_at(to, worker::state_bytes(local), shards_->ranks());
}

void ZeroShards::load_state(const std::string& bytes, torch::optim::Optimizer& optimizer) {
  worker::load_state_bytes(bytes, optimizer);
}

Collective& ZeroShards::ranks() const { return shards_->ranks(); }

ZeroTraffic ZeroShards::traffic() const { return shards_->traffic(); }

}  // namespace ddprun
