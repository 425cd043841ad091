// uneven: ranks with unlike numbers of batches: 10, 13, 7, 10 and so on. A rank without more takes
// part in the others' sums until they have no more either: Join. With --no-join the others learn
// that it does something else, and the job ends.
//
//   ddprun --standalone --nproc-per-node=3 build/bin/uneven
//
// examples/pytorch/uneven.py prints the same.
#include <ddprun/data_parallel.h>
#include <ddprun/join.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "examples/common/classifier.h"
#include "examples/common/made_set.h"
#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::say;

struct Options {
  int batch_size = 16;
  double lr = 0.1;
  bool no_join = false;
};

int batches_of(int rank) {
  constexpr std::array kBatches{10, 13, 7};
  return kBatches[static_cast<std::size_t>(rank) % kBatches.size()];
}

void train(const Process& process, const Options& options) {
  Collective& ranks = *process.collective;
  const int batches = batches_of(ranks.rank());
  // Each rank has samples of its own.
  const auto seed = static_cast<std::uint64_t>(100 + ranks.rank());
  const auto samples = examples::made_set(seed, batches * options.batch_size);
  auto net = examples::made_net(1, 64);
  examples::place(process, *net);
  DataParallel parallel(net.ptr(), ranks);
  SGD optimizer(net->parameters(), SGD::Options(options.lr).momentum(0.9));
  // A sampler of a world of one: it deals all of them to this rank.
  const DistributedSampler sampler(samples.size(), 1, 0, {.shuffle = false});
  BatchLoader loader(samples, sampler, static_cast<std::size_t>(options.batch_size));
  Mean loss;
  {
    const Join join({.enable = !options.no_join}, parallel);
    loss = examples::train_epoch(loader, parallel, optimizer, [&](const auto& batch) {
      return parallel.forward(net, batch.inputs);
    });
  }  // the rank waits for the others here
  std::vector<int> of_ranks;
  for (int rank = 0; rank < ranks.world_size(); ++rank) of_ranks.push_back(batches_of(rank));
  say(process, fmt::format("batches of the ranks: {}", fmt::join(of_ranks, ", ")));
  examples::say_epoch(process, 0, 1, loss);
  const auto held_out = examples::made_set(3, 400);
  const double accuracy = examples::accuracy_over(ranks, net, held_out, 64);
  examples::say_result(process, *net, accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains on ranks with unlike numbers of batches.");
  flags.on("--no-join", options.no_join, "do without Join: the job ends with an error");
  flags.count("--batch-size", options.batch_size, "samples of a batch (16)");
  flags.rate("--lr", options.lr, "learning rate (0.1)");
  return examples::run_training(
      "uneven", flags, argc, argv, [] {}, [&](Process& process) { train(process, options); });
}
