// cifar10: a net (--model) on small images. A run goes on within an epoch, on any number of
// workers.
//
//   examples/data/fetch cifar10 /tmp/cifar10
//   ddprun --standalone --nproc-per-node=2 build/bin/cifar10 --data /tmp/cifar10 --checkpoint c.pt
// examples/pytorch/cifar10.py does the same, without the checkpoint.
#include <ddprun/amp.h>
#include <ddprun/checkpoint.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <torch/utils.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "examples/cifar10/cifar_set.h"
#include "examples/common/classifier.h"
#include "examples/common/program.h"
#include "examples/nets/conv_nets.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::CifarSet;

struct Options {
  std::filesystem::path data, checkpoint;
  std::string model = "resnet18";
  LoadOptions load;
  int epochs = 10, batch_size = 64, width = 64;
  int steps = std::numeric_limits<int>::max();
  double lr = 0.05;
  bool bf16 = false;
};

// The scores, in float32, of a pass that may compute in 16 bits. Loss and weights stay in float32.
at::Tensor scores_of(DataParallel& parallel, const auto& net, const at::Tensor& images, bool bf16) {
  const Autocast autocast(images.device().type(), at::kBFloat16, bf16);
  return parallel.forward(net, images).to(at::kFloat);
}

// Goes on from the file of an earlier run. Rank 0 looks: on another host the file may be missing.
SamplerState resume(const Options& options, const CheckpointRun& run) {
  const std::byte found{std::filesystem::exists(options.checkpoint)};
  if (run.ranks.from_root(std::span(&found, 1), 0).at(0) == std::byte{0}) return {};
  const auto info = load_checkpoint(options.checkpoint, run, options.load).info;
  return {static_cast<std::uint64_t>(info.epoch), static_cast<std::size_t>(info.consumed)};
}

void save(const Options& options, const CheckpointRun& run, const SamplerState& at) {
  if (options.checkpoint.empty()) return;
  CheckpointInfo info{.epoch = static_cast<std::int64_t>(at.epoch), .arch = options.model};
  info.consumed = static_cast<std::int64_t>(at.consumed);
  save_checkpoint(options.checkpoint, run, info);
}

void train(Process& process, const Options& options, const CifarSet& images,
           const CifarSet& held_out) {
  Collective& ranks = *process.collective;
  torch::manual_seed(1);
  const auto net = examples::conv_net(options.model, 10, true, options.width);
  examples::place(process, *net);
  DataParallel parallel(net, ranks);
  torch::manual_seed(static_cast<std::uint64_t>(2 + ranks.rank()));  // of dropout
  SGD optimizer(net->parameters(), SGD::Options(options.lr).momentum(0.9).weight_decay(5e-4));
  const CheckpointRun run{*net, optimizer, ranks, &parallel};
  DistributedSampler sampler(images.size(), ranks.world_size(), ranks.rank());
  sampler.resume(resume(options, run));
  BatchLoader loader(images, sampler, static_cast<std::size_t>(options.batch_size),
                     {.pin = examples::on_gpu(process)});
  int steps = 0;
  for (int epoch = static_cast<int>(sampler.state().epoch); epoch < options.epochs; ++epoch) {
    const auto loss = examples::train_epoch(
        loader, parallel, optimizer,
        [&](const auto& batch) { return scores_of(parallel, net, batch.inputs, options.bf16); },
        [&] { return ++steps != options.steps; });
    if (steps == options.steps) return save(options, run, loader.state());
    examples::say_epoch(process, epoch, options.epochs, loss);
    sampler.set_epoch(static_cast<std::uint64_t>(epoch) + 1);
    save(options, run, sampler.state());
  }
  examples::say_result(process, *net, examples::accuracy_over(ranks, net, held_out, 64));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains a net on CIFAR-10, data-parallel.");
  flags.path("--data", options.data, "folder",
             "folder with the files of CIFAR-10's binary version (needed)");
  flags.path("--checkpoint", options.checkpoint, "file",
             "save here after each epoch; go on from it if it is there (none)");
  flags.word("--model", options.model, examples::kConvNets, "the net (resnet18)");
  flags.weights_key(options.load.weights_key);
  flags.count("--epochs", options.epochs, "passes over the images (10)");
  flags.count("--steps", options.steps, "end after so many steps, and save (all)");
  flags.count("--batch-size", options.batch_size, "images a worker and step (64)");
  flags.count("--width", options.width, "channels of the first layer; less is a smaller net (64)");
  flags.rate("--lr", options.lr, "learning rate (0.05)");
  flags.on("--bf16", options.bf16, "compute the forward pass in bfloat16 where that is enough");
  std::optional<CifarSet> train_set, test_set;
  const auto load = [&] {
    // A path that cannot be written is an error now, not after the first epoch.
    if (!options.checkpoint.empty())
      examples::value_of("--checkpoint", [&] { check_checkpoint_path(options.checkpoint); });
    train_set = CifarSet(
        examples::value_of("--data", [&] { return readers::read_cifar10(options.data, "train"); }),
        true);
    test_set = CifarSet(
        examples::value_of("--data", [&] { return readers::read_cifar10(options.data, "test"); }),
        false);
  };
  return examples::run_training("cifar10", flags, argc, argv, load, [&](Process& process) {
    train(process, options, *train_set, *test_set);
  });
}
