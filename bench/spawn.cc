// Ranks that a program forks. Times are from the call of spawn() to the end of rank 0's first
// training step, and to the return. Prints `first_step SECONDS` and `returned SECONDS`. bench/spawn
// runs it beside Python's torch.multiprocessing.spawn.
#include <ddprun/data_parallel.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  using namespace ddprun;  // NOLINT(google-build-using-namespace)
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto start = Clock::now();
  const auto tell = [start](const char* what) {
    const std::chrono::duration<double> seconds = Clock::now() - start;
    fmt::print("{} {:.4f}\n", what, seconds.count());
    std::fflush(stdout);
  };
  spawn(ranks, [&](Process& process) {
    torch::nn::Linear net(100, 10);
    DataParallel parallel(net.ptr(), *process.collective);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    parallel.forward(net, torch::ones({8, 100})).sum().backward();
    parallel.step(optimizer);
    if (process.world.rank == 0) tell("first_step");
  });
  tell("returned");
}
