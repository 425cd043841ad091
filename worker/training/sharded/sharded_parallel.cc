#include <ddprun/sharded_parallel.h>

#include <functional>
#include <utility>
#include <vector>

#include "worker/training/sharded/sharded_training.h"

namespace ddprun {

ShardedParallel::ShardedParallel(std::shared_ptr<torch::nn::Module> module, Collective& ranks,
                                 const std::vector<std::string>& units)
    : training_(std::make_unique<worker::ShardedTraining>(std::move(module), ranks, units)) {}

ShardedParallel::~ShardedParallel() = default;

const std::vector<at::Tensor>& ShardedParallel::shards() const { return training_->shards(); }

void ShardedParallel::update(const std::function<void()>& change) {
  begin_step({});
  change();
  end_step();
}

std::vector<ShardedParameter> ShardedParallel::parameters() const {
  return training_->parameters();
}

void ShardedParallel::set_gradient_sync(bool sums) { training_->set_gradient_sync(sums); }

torch::OrderedDict<std::string, at::Tensor> ShardedParallel::full_state_dict() {
  return training_->full_state_dict();
}

bool ShardedParallel::shares_memory() const { return training_->shares_memory(); }

std::uint64_t ShardedParallel::received_bytes() { return training_->received_bytes(); }

std::size_t ShardedParallel::before_forward(const torch::nn::Module& unit) {
  return training_->before_forward(unit);
}

void ShardedParallel::after_forward(std::size_t unit, const std::vector<at::Tensor*>& outputs) {
  training_->after_forward(unit, outputs);
}

void ShardedParallel::begin_step(const std::vector<at::Tensor>& stepped) {
  training_->begin_step(stepped);
}

void ShardedParallel::end_step() { training_->end_step(); }

}  // namespace ddprun
