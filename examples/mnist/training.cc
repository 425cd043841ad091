#include "examples/mnist/training.h"

#include <fmt/format.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/mnist/checkpoint.h"

namespace ddprun::examples {
namespace {

constexpr double kMomentum = 0.9;
constexpr double kRateDecay = 0.7;  // of the learning rate, each epoch
// Each report sums the loss over all ranks, which costs time.
constexpr std::size_t kStepsPerReport = 10;
// Limits the memory for activations: 37 MB in the widest layer.
constexpr std::int64_t kEvaluationBatch = 250;

// Every rank makes the same weights. DataParallel copies rank 0's anyway.
Net make_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return {};
}

torch::Tensor to_tensor(const std::vector<std::size_t>& indices) {
  const std::vector<std::int64_t> numbers(indices.begin(), indices.end());
  return torch::tensor(numbers, torch::kLong);
}

}  // namespace

Training::Training(const Options& options, worker::Process& process, Samples train,
                   Samples held_out)
    : options_(options),
      world_(process.world),
      ranks_(*process.collective),
      job_(world_.job_cookie.empty() ? world_.run_id : world_.job_cookie),
      train_(std::move(train)),
      held_out_(std::move(held_out)),
      progress_(options.progress, ::isatty(STDOUT_FILENO) != 0),
      net_(make_net(options.seed)),
      optimizer_(net_->parameters(), torch::optim::SGDOptions(options.lr).momentum(kMomentum)),
      epochs_done_(load_or_start_anew()),
      parallel_(net_.ptr(), ranks_),
      sampler_(train_.count(), ranks_.world_size(), ranks_.rank(), {.seed = options.seed}) {}

// Whether there is a state to go on from. Call only on rank 0, which also writes the file. Its
// answer counts for all ranks: on another host the file may be missing or be older.
bool Training::finds_own_checkpoint() const {
  const std::filesystem::path& file = options_.checkpoint;
  if (file.empty() || !std::filesystem::exists(file)) return false;
  if (options_.resume) return true;
  // The cookie is this launcher's alone: it tells as long as rank 0 stays on its node. A run id may
  // be that of earlier jobs, too: there only a restart tells. A resize is no restart.
  if (world_.restart_count > 0 || !world_.job_cookie.empty()) {
    const auto stamp = read_stamp(file);
    if (stamp && stamp->job == job_) return true;
    // It may be ours, on a disk that fails. Starting anew would lose hours of work: value() throws.
    if (!stamp && stamp.error().code() == ErrorCode::kSystem) stamp.value();
  }
  // It is another job's. We must not overwrite it.
  std::filesystem::rename(file, file.string() + ".old");
  return false;
}

int Training::load_or_start_anew() {
  const std::byte found{ranks_.rank() == 0 && finds_own_checkpoint()};
  Loaded loaded;
  if (ranks_.from_root(std::span(&found, 1), 0).at(0) != std::byte{0}) {
    loaded = load_checkpoint(options_.checkpoint, *net_, optimizer_).value();
  }
  // On several hosts a path may name several files.
  require_same(ranks_, loaded.fingerprint, "checkpoint " + options_.checkpoint.string());
  report(fmt::format(
      "mnist: world of {} ({}), {} digits to train on, {} held out, {}", ranks_.world_size(),
      ranks_.name(), train_.count(), held_out_.count(),
      loaded.epoch > 0 ? fmt::format("resumed after epoch {}", loaded.epoch) : "new weights"));
  return loaded.epoch;
}

void Training::run() {
  const auto start = std::chrono::steady_clock::now();
  double loss = 0;
  double accuracy = 0;
  const bool trains = epochs_done_ < options_.epochs;
  if (!trains) accuracy = held_out_accuracy();
  for (int epoch = epochs_done_ + 1; epoch <= options_.epochs; ++epoch) {
    loss = train_epoch(epoch);
    accuracy = held_out_accuracy();
    save(epoch);
    report(fmt::format("epoch {}/{} loss={:.4f} accuracy={:.4f}", epoch, options_.epochs, loss,
                       accuracy));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  // Data-parallel training keeps the weights equal on all ranks, bit for bit. If they are not, the
  // result is worthless, and nobody must take it for one.
  const std::uint64_t weights = checksum(*net_);
  require_same(ranks_, weights, "weights after training");
  report(fmt::format("trained for {:.1f} s", seconds.count()));
  if (trains) report(fmt::format("loss={}", loss));
  report(fmt::format("weights={:016x}", weights));
  report(fmt::format("accuracy={:.4f}", accuracy));
}

double Training::train_epoch(int epoch) {
  net_->train();
  sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
  optimizer_.param_groups()[0].options().set_lr(options_.lr * std::pow(kRateDecay, epoch - 1));
  // For dropout: each rank drops other units in each epoch, but the same ones after a restart.
  torch::manual_seed(options_.seed + 1 +
                     static_cast<std::uint64_t>(epoch * ranks_.world_size() + ranks_.rank()));
  // All ranks have equally many samples, thus equally many steps: each step needs all of them.
  const auto batches = to_tensor(sampler_.indices()).split(options_.batch_size);
  worker::Mean loss;
  for (std::size_t step = 1; step <= batches.size(); ++step) {
    const torch::Tensor& batch = batches[step - 1];
    const auto samples = static_cast<double>(batch.numel());
    loss.add(train_step(batch) * samples, samples);
    if (step % kStepsPerReport == 0) {
      report_step(fmt::format("epoch {}/{} step {}/{} loss={:.4f}", epoch, options_.epochs, step,
                              batches.size(), loss.over(ranks_)));
    }
  }
  return loss.over(ranks_);
}

double Training::train_step(const torch::Tensor& batch) {
  optimizer_.zero_grad();
  const auto guess = parallel_.forward(net_, train_.images.index_select(0, batch));
  const auto loss = torch::nll_loss(guess, train_.labels.index_select(0, batch));
  loss.backward();
  parallel_.step(optimizer_);
  return loss.item<double>();
}

double Training::held_out_accuracy() {
  // The net itself, not parallel_: there is nothing to sum, and ranks may have unequal batches.
  const torch::NoGradGuard no_gradients;
  net_->eval();
  const worker::DistributedSampler sampler(held_out_.count(), ranks_.world_size(), ranks_.rank(),
                                           {.shuffle = false});
  auto mine = sampler.indices();
  // Without the padding: a digit that two ranks look at would count twice.
  mine.resize(sampler.unpadded_size());
  worker::Mean right;
  for (const torch::Tensor& batch : to_tensor(mine).split(kEvaluationBatch)) {
    const auto guess = net_->forward(held_out_.images.index_select(0, batch)).argmax(1);
    right.add(guess.eq(held_out_.labels.index_select(0, batch)).sum().item<double>(),
              static_cast<double>(batch.numel()));
  }
  return right.over(ranks_);
}

// One rank writes: all have the same weights. value() throws if the disk is full, and that ends the
// job: training on without checkpoints would lose more.
void Training::save(int epoch) {
  if (options_.checkpoint.empty() || ranks_.rank() != 0) return;
  save_checkpoint(options_.checkpoint, *net_, optimizer_, {epoch, job_}).value();
}

void Training::report(std::string_view text) {
  if (ranks_.rank() != 0) return;
  // stdout may be a pipe, which is not flushed at the end of a line.
  fmt::print("{}", progress_.line(text));
  std::fflush(stdout);
}

void Training::report_step(std::string_view text) {
  if (ranks_.rank() != 0) return;
  fmt::print("{}", progress_.step(text));
  std::fflush(stdout);
}

}  // namespace ddprun::examples
