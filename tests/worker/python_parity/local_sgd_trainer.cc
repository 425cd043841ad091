// Trains with LocalSgd, as local_sgd_trainer.py does with PyTorch's post-local SGD. Prints a line
// `mode hashes` for each mode. The hashes are of each rank's weights, and of their average.
// ddprun starts it, with the modes as arguments: periodic, host, levels, norm.
#include <ddprun/local_sgd.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 20;

LocalSgdOptions options_of(const std::string& mode, int ranks) {
  LocalSgdOptions options{.warmup_steps = 5, .period = 4, .hook = all_reduce_hook()};
  const int pair = ranks % 2 == 0 ? 2 : ranks;
  if (mode == "host") options.gradient_ranks = pair;
  if (mode == "levels" && pair < ranks) options.levels = {{2, pair}, {6, ranks}};
  if (mode == "levels" && pair == ranks) options.levels = {{3, ranks}};
  return options;
}

std::vector<std::string> hashes_of_ranks(const torch::nn::Module& net, Collective& ranks) {
  const std::uint64_t mine = hash_of(net);
  std::vector<std::string> hashes;
  for (const auto& bytes : ranks.all_gather_bytes(std::as_bytes(std::span(&mine, 1)))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    hashes.push_back(fmt::format("{:016x}", theirs));
  }
  return hashes;
}

std::string end_of(const std::string& mode, Collective& ranks) {
  ParityNet net = made_net(mode == "norm", at::kCPU);
  DataParallel parallel(net.ptr(), ranks, {.broadcast_buffers = false});
  parallel.comm_hook(all_reduce_hook());
  LocalSgd local(parallel, options_of(mode, ranks.world_size()));
  SGD optimizer(net->parameters(), SGD::Options(0.05).momentum(0.9).weight_decay(1e-4));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto [x, y] = batch_of(static_cast<std::uint64_t>(1000 * step + ranks.rank()), at::kCPU);
    torch::cross_entropy_loss(parallel.forward(net, x, true), y).backward();
    local.step(optimizer);
  }
  auto hashes = hashes_of_ranks(*net, ranks);
  average(*net, ranks);
  hashes.push_back(fmt::format("{:016x}", hash_of(*net)));
  return fmt::format("{}", fmt::join(hashes, ":"));
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) { ddprun::worker::print_ends(argc, argv, ddprun::worker::end_of); }
