// Trains with ShardedParallel, as sharded_trainer.py does with PyTorch's fully_shard. Prints a line
// `mode numbers` for each mode: all weights at the end. Started by ddprun, with the modes as
// arguments: sgd, adam. With _sent behind the ranks use no shared memory for parameters.
#include <ddprun/optimizers.h>
#include <ddprun/sharded_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 20;

template <typename Optimizer, typename Options>
std::string train(Collective& ranks, const Options& options, at::ScalarType type) {
  ParityNet net = made_net(false, at::kCPU);
  net->to(type);
  ShardedParallel sharded(net.ptr(), ranks, {"first", "aside", "last"});
  Optimizer optimizer(sharded.shards(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(1000 * step + ranks.rank());
    const auto x = torch::randn({8, 20}).to(type);
    const auto y = torch::randint(10, {8}, torch::kLong);
    auto hidden = torch::tanh(sharded.forward(net->first, x));
    hidden = hidden + sharded.forward(net->aside, hidden);
    torch::cross_entropy_loss(sharded.forward(net->last, hidden), y).backward();
    sharded.step(optimizer);
  }
  std::vector<double> numbers;
  for (const auto& item : sharded.full_state_dict()) {
    const auto values = item.value().to(at::kDouble).flatten();
    numbers.insert(numbers.end(), values.data_ptr<double>(),
                   values.data_ptr<double>() + values.numel());
  }
  return fmt::format("{:.10g}", fmt::join(numbers, ","));
}

// Adam in 64 bits: in 32 it makes last bits of tiny gradients large.
std::string end_of(const std::string& mode, Collective& collective) {
  PassingCollective sends(collective);  // it shows nobody the others' memory
  Collective& ranks = mode.ends_with("_sent") ? sends : collective;
  if (mode.starts_with("adam")) return train<Adam>(ranks, Adam::Options(0.01), at::kDouble);
  return train<SGD>(ranks, SGD::Options(0.05).momentum(0.9).weight_decay(1e-4), at::kFloat);
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) { ddprun::worker::print_ends(argc, argv, ddprun::worker::end_of); }
