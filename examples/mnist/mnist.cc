// mnist: trains on handwritten digits with as many workers as it was started with: alone, or as
//
//   ddprun --standalone --nproc-per-node=2 build/bin/mnist --checkpoint /tmp/mnist.pt
//
// examples/pytorch/ddp_mnist.py ends with the same loss and accuracy.
// Exit codes: 0 for success, 2 for a wrong command line or wrong data, 1 for what fails later.
#include <ddprun/checkpoint.h>
#include <ddprun/data_parallel.h>
#include <ddprun/metrics.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "examples/common/classifier.h"
#include "examples/common/program.h"
#include "examples/common/progress.h"
#include "examples/mnist/net.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)

constexpr double kMomentum = 0.9;
constexpr double kRateDecay = 0.7;     // of the learning rate, each epoch
constexpr int kStepsPerReport = 10;    // each report sums the loss over all ranks, which costs time
constexpr int kEvaluationBatch = 250;  // limits the memory for activations
constexpr const char* kJobKey = "job";  // in the checkpoint: the job that saved it

struct Options {
  std::filesystem::path data = DDPRUN_EXAMPLES_DATA "/mnist_5k", checkpoint;
  int epochs = 5, batch_size = 32;
  double lr = 0.05;
  std::uint64_t seed = 1;
  bool resume = false, checkpoint_async = false;
  std::string progress = "auto";
  LoadOptions load;
};

examples::Flags flags_of(Options& options) {
  examples::Flags flags(
      "Trains a convolutional net on handwritten digits, data-parallel: alone, or under ddprun as\n"
      "  ddprun --standalone --nproc-per-node=2 mnist [options]");
  flags.path("--data", options.data, "folder",
             "folder of MNIST's four IDX files, gzipped or not (the 5,000 digits of the project)");
  flags.count("--epochs", options.epochs, "passes over the training digits (5)");
  flags.count("--batch-size", options.batch_size, "digits a worker and step (32)");
  flags.rate("--lr", options.lr, "learning rate of the first epoch, x 0.7 each epoch (0.05)");
  flags.seed("--seed", options.seed, "of the weights, the shuffling and the dropout (1)");
  flags.path("--checkpoint", options.checkpoint, "file",
             "save here after each epoch, the best also as model_best; a restarted or resized job "
             "goes on from it (none)");
  flags.on("--checkpoint-async", options.checkpoint_async,
           "train on while the checkpoint is written, from a copy of the state");
  flags.on("--resume", options.resume,
           "go on from the checkpoint also when the job is started anew");
  flags.weights_key(options.load.weights_key);
  flags.word("--progress", options.progress, {"auto", "always", "never"},
             "a line that is rewritten: on a terminal, always, or no steps (auto)");
  return flags;
}

// Every rank makes the same weights. DataParallel copies rank 0's anyway.
examples::Net make_net(std::uint64_t seed, const Process& process) {
  torch::manual_seed(seed);
  examples::Net net;
  examples::place(process, *net);
  return net;
}

// One run on this rank. All ranks make it and run it at the same time.
class Training {
 public:
  Training(const Options& options, Process& process, const TensorDataset& train,
           const TensorDataset& held_out)
      : options_(options),
        world_(process.world),
        ranks_(*process.collective),
        job_(world_.job_cookie.empty() ? world_.run_id : world_.job_cookie),
        train_(train),
        held_out_(held_out),
        progress_(examples::progress_mode(options.progress), ::isatty(STDOUT_FILENO) != 0),
        net_(make_net(options.seed, process)),
        optimizer_(net_->parameters(), SGD::Options(options.lr).momentum(kMomentum)),
        parallel_(net_.ptr(), ranks_),
        sampler_(train.size(), ranks_.world_size(), ranks_.rank(), {.seed = options.seed}),
        async_checkpoint_(ranks_),
        epochs_done_(load_or_start_anew()) {}

  // To the last epoch. The last lines are `loss=<of the last epoch, all digits>`,
  // `weights=<checksum>` and `accuracy=<share>`. Two runs that start alike end with the same bits.
  // So does a run that was resumed from a checkpoint with as many ranks.
  void run() {
    const auto start = std::chrono::steady_clock::now();
    std::optional<double> loss;
    double accuracy = 0;
    if (epochs_done_ >= options_.epochs) accuracy = held_out_accuracy();
    for (int epoch = epochs_done_ + 1; epoch <= options_.epochs; ++epoch) {
      loss = train_epoch(epoch);
      accuracy = held_out_accuracy();
      save(epoch, accuracy);
      report(progress_.line(fmt::format("epoch {}/{} loss={:.4f} accuracy={:.4f}", epoch,
                                        options_.epochs, *loss, accuracy)));
    }
    async_checkpoint_.wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // Data-parallel training keeps the weights equal on all ranks, bit for bit. If they are not,
    // the result is worthless, and nobody must take it for one.
    const std::uint64_t weights = checksum(*net_);
    require_same(ranks_, weights, "weights after training");
    report(progress_.line(fmt::format("trained for {:.1f} s", seconds.count())));
    if (loss) report(fmt::format("loss={}\n", *loss));
    report(fmt::format("weights={:016x}\naccuracy={:.4f}\n", weights, accuracy));
  }

 private:
  CheckpointRun state() { return {*net_, optimizer_, ranks_, &parallel_}; }

  // Returns whether there is a state to go on from. Rank 0 asks, and its answer counts for all
  // ranks. On another host the file may be missing or be older. A restarted or resized job goes on
  // from the file if it has saved it itself. With --resume any job does.
  bool is_of_this_job(const std::filesystem::path& file) const {
    try {
      const CheckpointInfo info = read_checkpoint_info(file);
      const Value* found = info.extra.find(kJobKey);
      const std::string* job = found != nullptr ? found->as<std::string>() : nullptr;
      return job != nullptr && *job == job_;
    } catch (const CheckpointError& error) {
      // It may be ours, on a disk that fails. Starting anew would lose hours of work.
      if (error.of_system()) throw;
      return false;
    }
  }

  bool finds_own_checkpoint() const {
    const std::filesystem::path& file = options_.checkpoint;
    if (file.empty() || !std::filesystem::exists(file)) return false;
    if (options_.resume) return true;
    // The launcher's cookie is this job's alone: it tells as long as rank 0 stays on its node. A
    // run id may be that of earlier jobs, too: there only a restart tells. A resize is no restart.
    if (world_.restart_count > 0 || !world_.job_cookie.empty()) {
      if (is_of_this_job(file)) return true;
    }
    std::filesystem::rename(file,
                            file.string() + ".old");  // another job's: we must not overwrite it
    return false;
  }

  int load_or_start_anew() {
    const std::byte found{ranks_.rank() == 0 && finds_own_checkpoint()};
    LoadedCheckpoint loaded;
    std::string begins = "new weights";
    if (ranks_.from_root(std::span(&found, 1), 0).at(0) != std::byte{0}) {
      loaded = load_checkpoint(options_.checkpoint, state(), options_.load);
      begins = fmt::format("resumed after epoch {}", loaded.info.epoch);
      if (const auto how = describe(loaded); !how.empty()) begins += fmt::format(" ({})", how);
    }
    best_ = loaded.info.best_prec1;
    report(progress_.line(
        fmt::format("mnist: world of {} ({}), {} digits to train on, {} held out, {}",
                    ranks_.world_size(), ranks_.name(), train_.size(), held_out_.size(), begins)));
    return static_cast<int>(loaded.info.epoch);
  }

  double train_epoch(int epoch) {
    net_->train();
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
    optimizer_.param_groups()[0].options().set_lr(options_.lr * std::pow(kRateDecay, epoch - 1));
    // Seeds dropout. Each rank drops other units in each epoch, but the same ones after a restart.
    torch::manual_seed(options_.seed + 1 +
                       static_cast<std::uint64_t>(epoch * ranks_.world_size() + ranks_.rank()));
    // All ranks have equally many batches: each step needs all of them. The digits are in memory,
    // so no thread reads ahead.
    BatchLoader loader(train_, sampler_, static_cast<std::size_t>(options_.batch_size),
                       {.workers = 0});
    const at::Device device = net_->parameters()[0].device();
    Mean loss;
    int step = 0;
    for (const auto& read : loader) {
      const auto batch = read.to(device);
      optimizer_.zero_grad();
      const auto batch_loss = torch::nll_loss(parallel_.forward(net_, batch.inputs), batch.targets);
      batch_loss.backward();
      parallel_.step(optimizer_);
      const auto samples = static_cast<double>(batch.size());
      loss.add(batch_loss.item<double>() * samples, samples);
      if (++step % kStepsPerReport != 0) continue;
      const double mean = loss.over(ranks_);
      report(progress_.step(fmt::format("epoch {}/{} step {}/{} loss={:.4f}", epoch,
                                        options_.epochs, step, loader.size(), mean)));
    }
    return loss.over(ranks_);
  }

  double held_out_accuracy() {
    return examples::accuracy_over(ranks_, net_, held_out_, kEvaluationBatch);
  }

  // One rank writes: all have the same weights. value() throws if the disk is full, and that ends
  // the job: training on without checkpoints would lose more.
  void save(int epoch, double accuracy) {
    const bool is_best = accuracy > best_;
    best_ = std::max(best_, accuracy);
    if (options_.checkpoint.empty()) return;
    CheckpointInfo info{.epoch = epoch, .arch = "mnist", .best_prec1 = best_};
    info.extra.set(kJobKey, Value(job_));
    if (options_.checkpoint_async) {
      async_checkpoint_.save(options_.checkpoint, state(), info, {.is_best = is_best});
    } else {
      save_checkpoint(options_.checkpoint, state(), info, {.is_best = is_best});
    }
  }

  void report(const std::string& bytes) const {
    if (ranks_.rank() != 0) return;
    fmt::print("{}", bytes);
    std::fflush(stdout);  // it may be a pipe, which is not flushed at the end of a line
  }

  const Options& options_;
  const World& world_;
  Collective& ranks_;
  const std::string job_;
  const TensorDataset& train_;
  const TensorDataset& held_out_;
  examples::Progress progress_;
  examples::Net net_;
  SGD optimizer_;
  DataParallel parallel_;
  DistributedSampler sampler_;
  AsyncCheckpoint async_checkpoint_;
  double best_ = 0;  // accuracy
  int epochs_done_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  auto flags = flags_of(options);
  std::optional<TensorDataset> train, held_out;
  const auto load = [&] {
    if (options.resume && options.checkpoint.empty())
      throw examples::UsageError("--resume: needs --checkpoint FILE");
    if (options.checkpoint_async && options.checkpoint.empty())
      throw examples::UsageError("--checkpoint-async: needs --checkpoint FILE");
    // A path that cannot be written is an error now, not after the first epoch.
    if (!options.checkpoint.empty())
      examples::value_of("--checkpoint", [&] { check_checkpoint_path(options.checkpoint); });
    train = examples::to_tensors(
        examples::value_of("--data", [&] { return readers::read_idx(options.data, "train"); }));
    held_out = examples::to_tensors(
        examples::value_of("--data", [&] { return readers::read_idx(options.data, "t10k"); }));
  };
  return examples::run_training("mnist", flags, argc, argv, load, [&](Process& process) {
    Training(options, process, *train, *held_out).run();
  });
}
