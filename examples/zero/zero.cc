// zero: Adam keeps two numbers for each parameter. With --zero each parameter's are on one rank,
// its owner (ZeRO, stage 1). The owner steps it and gives the others the result. The weights have
// the same bits at the end; what a rank keeps is less.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/zero
//   ddprun --standalone --nproc-per-node=4 build/bin/zero --zero
//
// examples/pytorch/zero.py prints the same.
#include <ddprun/data_parallel.h>
#include <ddprun/zero_optimizer.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <cstring>
#include <span>
#include <vector>

#include "examples/common/classifier.h"
#include "examples/common/made_set.h"
#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::say;

struct Options {
  int epochs = 3, batch_size = 16, width = 64;
  double lr = 0.003;
  bool zero = false;
};

// Prints the bytes of Adam's numbers: for the parameters of each rank, and for all parameters.
void say_bytes(const Process& process, const Adam& adam, const torch::nn::Module& net) {
  std::size_t mine = 0, whole = 0;
  for (const auto& [parameter, any_state] : adam.state()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*any_state);
    mine += state.exp_avg().nbytes() + state.exp_avg_sq().nbytes();
  }
  for (const auto& parameter : net.parameters()) whole += 2 * parameter.nbytes();
  std::vector<std::size_t> of_ranks;
  for (const auto& bytes : process.collective->all_gather_bytes(std::as_bytes(std::span(&mine, 1))))
    std::memcpy(&of_ranks.emplace_back(), bytes.data(), sizeof mine);
  say(process, fmt::format("optimizer bytes a rank: {} of {}", fmt::join(of_ranks, ", "), whole));
}

void train(const Process& process, const Options& options, torch::nn::Sequential& net,
           DataParallel& parallel, torch::optim::Optimizer& optimizer) {
  Collective& ranks = *process.collective;
  const auto samples = examples::made_set(2, 1600);
  DistributedSampler sampler(samples.size(), ranks.world_size(), ranks.rank());
  BatchLoader loader(samples, sampler, static_cast<std::size_t>(options.batch_size));
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    const auto loss = examples::train_epoch(loader, parallel, optimizer, [&](const auto& batch) {
      return parallel.forward(net, batch.inputs);
    });
    examples::say_epoch(process, epoch, options.epochs, loss);
  }
  const auto held_out = examples::made_set(3, 400);
  const double accuracy = examples::accuracy_over(ranks, net, held_out, 64);
  examples::say_result(process, *net, accuracy);
}

void run(const Process& process, const Options& options) {
  auto net = examples::made_net(5, options.width);
  examples::place(process, *net);
  DataParallel parallel(net.ptr(), *process.collective);
  const Adam::Options adam_options(options.lr);
  if (options.zero) {
    ZeroOptimizer<Adam> adam(net->parameters(), *process.collective, adam_options);
    train(process, options, net, parallel, adam);
    say_bytes(process, adam.local(), *net);
  } else {
    Adam adam(net->parameters(), adam_options);
    train(process, options, net, parallel, adam);
    say_bytes(process, adam, *net);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "Trains with Adam. Each rank keeps its whole state, or it is sharded over the ranks.");
  flags.on("--zero", options.zero, "shard the state over the ranks");
  flags.count("--epochs", options.epochs, "passes over the samples (3)");
  flags.count("--batch-size", options.batch_size, "samples a worker and step (16)");
  flags.count("--width", options.width, "of each of five hidden layers (64)");
  flags.rate("--lr", options.lr, "learning rate (0.003)");
  return examples::run_training(
      "zero", flags, argc, argv, [] {}, [&](Process& process) { run(process, options); });
}
