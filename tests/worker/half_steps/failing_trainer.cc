// Trains a small model; on rank 1, and only there, one pass fails in the way of the command line.
// Then each rank prints `rank N weights HASH`. If an error ended it, that is printed, and the exit
// code is 1.
//
//   failing_trainer unused|frozen|unfrozen|added|replaced|hook|backward|peer|none safe|plain PASS
//
// safe: DataParallel::step(); plain: optimizer.step(). Started by ddprun with two ranks.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun::worker {
namespace {

constexpr int kPasses = 5;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = torch::tanh(first(x) * scale);
    return left_out ? y.sum() : (y * rare).sum();
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 8))};
  torch::Tensor scale{register_parameter("scale", torch::ones(8), /*requires_grad=*/false)};
  torch::Tensor rare{register_parameter("rare", torch::ones(8))};
  bool left_out = false;  // rare
};
TORCH_MODULE(Net);

struct Plan {
  std::string failure;
  bool safe_step;
  int pass;
};

// FNV-1a, 64 bits, of all weights.
std::uint64_t hash_of(const torch::nn::Module& net) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const at::Tensor& parameter : net.parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(parameter.data_ptr());
    for (std::size_t i = 0; i < parameter.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  }
  return hash;
}

[[noreturn]] void throw_it(const std::string& where) {
  throw std::runtime_error(where + " failed");
}

void fail(const std::string& failure, Net& net) {
  if (failure == "unused") net->left_out = true;
  if (failure == "frozen") net->rare.requires_grad_(false);
  if (failure == "unfrozen") net->scale.requires_grad_(true);
  if (failure == "added") net->register_parameter("new", torch::ones(8));
  if (failure == "replaced") net->first = net->replace_module("first", torch::nn::Linear(8, 8));
  if (failure == "peer") throw_it("rank 1's own code");
}

void train(const Plan& plan, Collective& collective) {
  Net net;
  DataParallel parallel(net.ptr(), collective);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  bool fails = false;
  const auto fail_in = [&](const char* place) {
    if (fails && plan.failure == place) throw_it(std::string("the ") + place);
  };
  parallel.comm_hook([&, sum = all_reduce_hook()](Bucket& bucket, Collective& ranks) {
    fail_in("hook");
    sum(bucket, ranks);
  });
  net->first->weight.register_hook([&](const at::Tensor& gradient) {
    fail_in("backward");
    return gradient;
  });
  for (int pass = 1; pass <= kPasses; ++pass) {
    fails = collective.rank() == 1 && pass == plan.pass;
    if (fails) fail(plan.failure, net);
    torch::manual_seed(10 * pass + collective.rank());
    optimizer.zero_grad();
    parallel.forward(net, torch::randn({4, 8})).backward();
    if (plan.safe_step)
      parallel.step(optimizer);
    else
      optimizer.step();
  }
  fmt::print("rank {} weights {:016x}\n", collective.rank(), hash_of(*net));
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  using namespace ddprun::worker;  // NOLINT(google-build-using-namespace)
  if (argc != 4) return 2;
  at::set_num_threads(1);
  // The agent asks the other rank to end as soon as one has failed. It shall say first what it met.
  std::signal(SIGTERM, SIG_IGN);
  const ddprun::Process process = ddprun::bootstrap();
  try {
    train({argv[1], std::string(argv[2]) == "safe", std::atoi(argv[3])}, *process.collective);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", process.world.rank, error.what());
    return 1;
  }
}
