// local_sgd: gradients are averaged in the first steps. Then each worker steps by itself, and the
// parameters are averaged every few steps: what travels is a fraction. With --levels pairs of
// workers, as those of a host, average often, and all of them seldom.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/local_sgd --levels
//
// examples/pytorch/local_sgd.py prints the same.
#include <ddprun/data_parallel.h>
#include <ddprun/local_sgd.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>

#include "examples/common/classifier.h"
#include "examples/common/made_set.h"
#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)

struct Options {
  int epochs = 3, batch_size = 16, width = 64, warmup_steps = 20, period = 4;
  double lr = 0.1;
  bool levels = false;
};

LocalSgdOptions when_to_average(const Options& options, int workers) {
  LocalSgdOptions when{.warmup_steps = options.warmup_steps, .period = options.period};
  if (options.levels && workers > 2 && workers % 2 == 0)
    when.levels = {{options.period, 2}, {4L * options.period, workers}};
  return when;
}

void run(const Process& process, const Options& options) {
  Collective& ranks = *process.collective;
  auto net = examples::made_net(2, options.width);
  examples::place(process, *net);
  DataParallel parallel(net.ptr(), ranks);
  LocalSgd local(parallel, when_to_average(options, ranks.world_size()));
  SGD optimizer(net->parameters(), SGD::Options(options.lr).momentum(0.9));
  const auto samples = examples::made_set(2, 1600);
  DistributedSampler sampler(samples.size(), ranks.world_size(), ranks.rank());
  BatchLoader loader(samples, sampler, static_cast<std::size_t>(options.batch_size));
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    Mean loss;
    for (const auto& read : loader) {
      const auto batch = read.to(net->parameters()[0].device());
      optimizer.zero_grad();
      const auto batch_loss =
          torch::cross_entropy_loss(parallel.forward(net, batch.inputs), batch.targets);
      batch_loss.backward();
      local.step(optimizer);  // in place of parallel.step()
      const auto count = static_cast<double>(batch.size());
      loss.add(batch_loss.item<double>() * count, count);
    }
    examples::say_epoch(process, epoch, options.epochs, loss);
  }
  average(*net, ranks);  // the last steps were each worker's own
  const auto held_out = examples::made_set(3, 400);
  examples::say_result(process, *net, examples::accuracy_over(ranks, net, held_out, 64));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "Trains with SGD. Workers average their gradients at first, and then their parameters.");
  flags.on("--levels", options.levels, "pairs of workers average four times as often as all");
  flags.count("--warmup-steps", options.warmup_steps, "steps with averaged gradients (20)");
  flags.count("--period", options.period, "steps between averages of the parameters (4)");
  flags.count("--epochs", options.epochs, "passes over the samples (3)");
  flags.count("--batch-size", options.batch_size, "samples a worker and step (16)");
  flags.count("--width", options.width, "of each of two hidden layers (64)");
  flags.rate("--lr", options.lr, "learning rate (0.1)");
  return examples::run_training(
      "local_sgd", flags, argc, argv, [] {}, [&](Process& process) { run(process, options); });
}
