#include <c10/util/Exception.h>
#include <ddprun/local_sgd.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <stdexcept>

#include "worker/training/local_sgd/average_schedule.h"
#include "worker/training/local_sgd/flat_average.h"

namespace ddprun {

namespace worker {

// The averages of each level, over groups of its own.
class PeriodicAverages {
 public:
  PeriodicAverages(const LocalSgdOptions& options, Collective& ranks)
      : schedule_(options, ranks.world_size()) {
    for (const AverageLevel& level : schedule_.levels()) {
      Collective* group = &ranks;
      if (level.ranks < ranks.world_size())
        group = groups_.emplace_back(ranks.split(ranks.rank() / level.ranks, ranks.rank())).get();
      averages_.emplace_back(*group);
    }
  }

  // Whether step number `step` ends with an average, which is made then.
  bool make(std::int64_t step, const std::vector<at::Tensor>& parameters) {
    const auto level = schedule_.due(step);
    if (!level) return false;
    FlatAverage& average = averages_[*level];
    average.run(average.with_gradient(parameters));
    return true;
  }

 private:
  AverageSchedule schedule_;
  std::vector<std::unique_ptr<Collective>> groups_;
  std::vector<FlatAverage> averages_;  // by level
};

}  // namespace worker

LocalSgd::LocalSgd(DataParallel& parallel, const LocalSgdOptions& options)
    : parallel_(parallel),
      options_(options),
      ranks_(parallel.join_ranks()),
      averages_(std::make_unique<worker::PeriodicAverages>(options, ranks_)) {
  if (options_.warmup_steps == 0) leave_warm_up();
}

LocalSgd::~LocalSgd() = default;

bool LocalSgd::after_step(const std::vector<at::Tensor>& parameters) {
  const bool averaged = averages_->make(steps_, parameters);
  stepped_ = true;
  if (++steps_ == options_.warmup_steps) leave_warm_up();
  return averaged;
}

std::int64_t LocalSgd::steps() const { return steps_; }

void LocalSgd::resume(std::int64_t steps) {
  if (steps < 0)
    throw std::invalid_argument(
        fmt::format("LocalSgd: resume() of {} steps, expected 0 or more", steps));
  if (stepped_ || steps_ > 0)
    throw std::logic_error("LocalSgd: resume() comes before the first step, and once");
  steps_ = steps;
  if (steps > 0 && steps >= options_.warmup_steps && options_.warmup_steps > 0) leave_warm_up();
}

// The ranks have the same weights here, so what resize() sends changes none. The buckets stay as
// they are: PyTorch's do, and with them the order of the additions.
void LocalSgd::leave_warm_up() {
  if (options_.gradient_ranks == ranks_.world_size() && !options_.hook) return;
  const auto layout = parallel_.buckets();
  const bool rebuilt = parallel_.buckets_rebuilt();
  parallel_.resize(ranks_.split(ranks_.rank() / options_.gradient_ranks, ranks_.rank()));
  if (options_.hook) parallel_.comm_hook(options_.hook);
  if (rebuilt) parallel_.restore_buckets(layout);
}

void average(torch::nn::Module& module, Collective& ranks) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  std::vector<at::Tensor> others;
  auto all = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) all.push_back(buffer);
  for (const at::Tensor& tensor : all) {
    if (!tensor.defined()) continue;
    if (tensor.is_floating_point() || tensor.is_complex()) {
      by_type[tensor.scalar_type()].push_back(tensor);
    } else {
      others.push_back(tensor);
    }
  }
  for (const auto& [type, tensors] : by_type) worker::FlatAverage(ranks).run(tensors);
  TensorCollective from_root(ranks);
  for (const at::Tensor& tensor : others) from_root.broadcast(tensor, 0);
}

}  // namespace ddprun
