// Trains with Join and with ZeroOptimizer, as join_zero_trainer.py does with PyTorch, and prints a
// line `mode hash` for each mode. It is the hash of all weights and buffers at the end; for
// `partition` one of the owners. Started by ddprun, with the modes as arguments.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/join.h>
#include <ddprun/zero_optimizer.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"
#include "worker/training/zero/partition.h"

namespace ddprun::worker {
namespace {

constexpr std::array kBatches{10, 13, 7};
constexpr int kSteps = 50;
constexpr int kLists = 200;

bool has(const std::string& mode, const std::string& part) {
  return mode.find(part) != std::string::npos;
}

// One step of a program. Each rank has its own samples.
template <typename Optimizer>
void step(ParityNet& net, DataParallel& parallel, Optimizer& optimizer, int number, int rank,
          bool aside) {
  optimizer.zero_grad();
  const auto [x, y] = batch_of(1000 * number + rank, net->first->weight.device());
  torch::cross_entropy_loss(parallel.forward(net, x, aside), y).backward();
  parallel.step(optimizer);
}

// The rank that comes last always does. PyTorch counts the parameters of a joined rank's last pass,
// and we do not (docs/join.md).
bool uses_aside(const std::string& mode, int number, int rank) {
  return !has(mode, "unused") || rank == 1 || number % 4 == 2;
}

// Modes: join, join_active, …_unused, …_hook, …_adam, …_zero, …_scatter.
std::string train_joined(const std::string& mode, Collective& ranks) {
  ParityNet net = made_net(true, device_of(ranks));
  DataParallel parallel(net.ptr(), ranks, {.find_unused_parameters = has(mode, "unused")});
  if (has(mode, "hook")) parallel.comm_hook(all_reduce_hook());
  const JoinOptions options{.divide_by_initial_world_size = !has(mode, "active")};
  const int batches = kBatches[static_cast<std::size_t>(ranks.rank())];
  const auto train = [&](auto& optimizer, auto&... joined) {
    const auto join = Join(options, parallel, joined...);
    for (int number = 0; number < batches; ++number)
      step(net, parallel, optimizer, number, ranks.rank(), uses_aside(mode, number, ranks.rank()));
  };
  if (has(mode, "zero") || has(mode, "scatter")) {
    ZeroOptimizer<Adam> optimizer(net->parameters(), ranks, Adam::Options(0.01));
    if (has(mode, "scatter")) optimizer.reduce_scatter(parallel);
    train(optimizer, optimizer);
  } else if (has(mode, "adam")) {
    Adam optimizer(net->parameters(), Adam::Options(0.01));
    train(optimizer);
  } else {
    SGD optimizer(net->parameters(), SGD::Options(0.05).momentum(0.9).weight_decay(1e-4));
    train(optimizer);
  }
  return fmt::format("{:016x}", hash_of(*net));
}

template <typename Local, typename Options>
std::string train_sharded(const std::string& how, const Options& options, Collective& ranks) {
  ParityNet net = made_net(true, device_of(ranks));
  DataParallel parallel(net.ptr(), ranks);
  const auto train = [&](auto& optimizer) {
    for (int number = 0; number < kSteps; ++number) {
      // A scheduler: the options of the program's groups count.
      for (auto& group : optimizer.param_groups()) group.options().set_lr(0.01 / (1 + number));
      step(net, parallel, optimizer, number, ranks.rank(), true);
    }
  };
  if (how == "whole") {
    Local optimizer(net->parameters(), options);
    train(optimizer);
  } else {
    ZeroOptimizer<Local> optimizer(net->parameters(), ranks, options);
    if (how == "scatter") optimizer.reduce_scatter(parallel);
    train(optimizer);
  }
  return fmt::format("{:016x}", hash_of(*net));
}

// Modes: sgd, nesterov, adam, adam_decay, amsgrad, adamw; with _whole, _zero or _scatter behind.
std::string train_optimizer(const std::string& mode, Collective& ranks) {
  const auto line = mode.rfind('_');
  const std::string kind = mode.substr(0, line);
  const std::string how = mode.substr(line + 1);
  if (kind == "sgd")
    return train_sharded<SGD>(
        how, SGD::Options(0.01).momentum(0.9).dampening(0.1).weight_decay(1e-3), ranks);
  if (kind == "nesterov")
    return train_sharded<SGD>(how, SGD::Options(0.01).momentum(0.8).nesterov(true), ranks);
  if (kind == "adamw")
    return train_sharded<AdamW>(how, AdamW::Options(0.01).weight_decay(0.02), ranks);
  Adam::Options options(0.01);
  if (kind == "adam_decay") options.weight_decay(0.01).betas({0.8, 0.95}).eps(1e-6);
  if (kind == "amsgrad") options.amsgrad(true);
  return train_sharded<Adam>(how, options, ranks);
}

// The generator of both sides.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t limit) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33U) % limit;
  }

 private:
  std::uint64_t state_;
};

// One to three groups of up to 40 parameters. Sizes are small, so that many are equal, but for a
// few.
std::string partitions(int ranks) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::uint64_t list = 0; list < kLists; ++list) {
    Numbers numbers(list);
    std::vector<std::vector<std::int64_t>> groups(1 + numbers.below(3));
    for (auto& group : groups) {
      group.resize(1 + numbers.below(40));
      for (auto& count : group) {
        const std::uint64_t limit = numbers.below(5) == 0 ? 5000 : 12;
        count = static_cast<std::int64_t>(1 + numbers.below(limit));
      }
    }
    for (const Owners& owners : partition(groups, ranks)) {
      for (const int owner : owners)
        hash = (hash ^ static_cast<std::uint64_t>(owner)) * 0x100000001b3U;
    }
  }
  return fmt::format("{:016x}", hash);
}

std::string end_of(const std::string& mode, Collective& ranks) {
  if (mode == "partition") return partitions(ranks.world_size());
  return mode.starts_with("join") ? train_joined(mode, ranks) : train_optimizer(mode, ranks);
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) { ddprun::worker::print_ends(argc, argv, ddprun::worker::end_of); }
