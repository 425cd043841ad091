// image_folder: a net (--model) on photographs in folders, `train/class/name.jpg` and
// `val/class/name.jpg` (ImageNette and its kin). Threads read and decode ahead. A training image is
// a random part of the photograph, by numbers that follow from epoch and index. A corrupt file is
// named.
//
//   examples/data/fetch imagenette /tmp/imagenette
//   ddprun --standalone --nproc-per-node=2 build/bin/image_folder --data /tmp/imagenette
//
// examples/pytorch/image_folder.py does the same with Pillow.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "examples/common/classifier.h"
#include "examples/common/program.h"
#include "examples/image_folder/photo_set.h"
#include "examples/nets/conv_nets.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::PhotoSet;
using examples::say;

struct Options {
  std::filesystem::path data;
  int epochs = 10, batch_size = 32, workers = 2, side = 128, width = 64;
  std::string model = "resnet18";
  double lr = 0.05;
  bool read_only = false;
};

// Images a second that the readers give to this rank when nothing else is done.
void read_all(Process& process, BatchLoader<PhotoSet>& loader) {
  const auto start = std::chrono::steady_clock::now();
  std::size_t images = 0;
  for (const auto& batch : loader) images += batch.size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  say(process, fmt::format("images={} images_per_second={:.0f}", images,
                           static_cast<double>(images) / seconds.count()));
}

void train(Process& process, const Options& options, const PhotoSet& photos,
           const PhotoSet& held_out) {
  Collective& ranks = *process.collective;
  DistributedSampler sampler(photos.size(), ranks.world_size(), ranks.rank());
  BatchLoader loader(
      photos, sampler, static_cast<std::size_t>(options.batch_size),
      {.workers = static_cast<std::size_t>(options.workers), .pin = examples::on_gpu(process)});
  if (options.read_only) return read_all(process, loader);
  torch::manual_seed(1);
  const auto net = examples::conv_net(options.model, photos.classes(), false, options.width);
  examples::place(process, *net);
  DataParallel parallel(net, ranks);
  torch::manual_seed(static_cast<std::uint64_t>(2 + ranks.rank()));  // of dropout
  SGD optimizer(net->parameters(), SGD::Options(options.lr).momentum(0.9).weight_decay(1e-4));
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    const auto loss = examples::train_epoch(loader, parallel, optimizer, [&](const auto& batch) {
      return parallel.forward(net, batch.inputs);
    });
    examples::say_epoch(process, epoch, options.epochs, loss);
  }
  const double accuracy = examples::accuracy_over(ranks, net, held_out, 32);
  examples::say_result(process, *net, accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains a net on photographs in folders, data-parallel.");
  flags.path("--data", options.data, "folder",
             "folder with train/ and val/, each with a folder for each class (needed)");
  flags.word("--model", options.model, examples::kConvNets, "the net (resnet18)");
  flags.count("--epochs", options.epochs, "passes over the photographs (10)");
  flags.count("--batch-size", options.batch_size, "photographs a worker and step (32)");
  flags.count("--workers", options.workers, "threads that read and decode (2)");
  flags.count("--side", options.side, "pixels of a side, for the net (128)");
  flags.count("--width", options.width, "channels of the first layer; less is a smaller net (64)");
  flags.rate("--lr", options.lr, "learning rate (0.05)");
  flags.on("--read-only", options.read_only, "read all photographs once, and say how fast");
  std::optional<PhotoSet> train_set, test_set;
  const auto load = [&] {
    if (const int least = examples::least_side(options.model); options.side < least)
      throw examples::UsageError(fmt::format("--side: {} given, expected {} or more for --model={}",
                                             options.side, least, options.model));
    const auto side = static_cast<std::size_t>(options.side);
    train_set =
        PhotoSet(examples::value_of(
                     "--data", [&] { return readers::list_image_folder(options.data / "train"); }),
                 side, true);
    test_set =
        PhotoSet(examples::value_of(
                     "--data", [&] { return readers::list_image_folder(options.data / "val"); }),
                 side, false);
  };
  return examples::run_training("image_folder", flags, argc, argv, load, [&](Process& process) {
    train(process, options, *train_set, *test_set);
  });
}
