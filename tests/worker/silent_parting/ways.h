// Ways in which a training program can miss a reduction, as rows of a table. A row has its act, and
// the right result.
#pragma once

#include <ddprun/data_parallel.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x)) * scale); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 5))};
  torch::Tensor scale{register_parameter("scale", torch::ones(5))};
  torch::Tensor fixed{register_parameter("fixed", torch::ones(5), /*requires_grad=*/false)};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(5, 3))};
};
TORCH_MODULE(Net);

// A way begins in this iteration of kIterations, unless it says otherwise.
inline constexpr int kAt = 1;
inline constexpr int kIterations = 4;

// One rank's training program. Ranks have unlike batches, as the seeds of at::rand() are unlike.
struct Program {
  explicit Program(Collective& all, const DataParallelOptions& options = {})
      : ranks(all), rank(all.rank()), parallel(net.ptr(), all, options) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
  }

  static torch::Tensor batch() { return torch::rand({4, 6}); }
  static torch::Tensor loss_of(const torch::Tensor& out) { return out.square().mean(); }
  torch::Tensor forward() { return parallel.forward(net, batch()); }
  void pass() { loss_of(forward()).backward(); }
  void step() {
    parallel.step(optimizer);
    ++steps;
  }
  // An iteration as it should be, or the way in place of it, where that has its turn.
  void train(const std::function<void()>& way, int at = kAt) {
    for (int i = 0; i < kIterations; ++i) {
      optimizer.zero_grad();
      if (i == at) {
        way();
        continue;
      }
      pass();
      step();
    }
    ranks.barrier();  // as a program ends its epoch
  }
  // On this rank alone the way, on the others an iteration as it should be.
  void train_one(int alone, const std::function<void()>& way) {
    train([&] {
      if (rank == alone) return way();
      pass();
      step();
    });
  }

  Collective& ranks;
  int rank;
  Net net;
  DataParallel parallel;
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  int steps = 0;
};

struct Outcome {
  std::vector<at::Tensor> weights;
  int steps = 0;
};

struct Way {
  const char* name;
  // Nothing if all ranks train, and have the same weights. Else all of them throw, one of them with
  // these words. None has stepped more than once since the way began, or all have the same weights.
  std::optional<std::string> words;
  // Puts what the rank has come to into its second argument, also where it throws.
  std::function<void(Collective&, Outcome&)> run;
};

// A way of a Program.
inline std::function<void(Collective&, Outcome&)> of_program(
    std::function<void(Program&)> body, const DataParallelOptions& options = {}) {
  return [body = std::move(body), options](Collective& ranks, Outcome& outcome) {
    Program program(ranks, options);
    outcome.weights = program.net->parameters();
    try {
      body(program);
    } catch (...) {
      outcome.steps = program.steps;
      throw;
    }
    outcome.steps = program.steps;
  };
}

std::vector<Way> ways_of_passes();
std::vector<Way> ways_of_weights();
std::vector<Way> ways_of_ranks();
std::vector<Way> ways_of_modes();
std::vector<Way> ways_of_others();
std::vector<Way> ways_of_graphs();
std::vector<Way> ways_of_settings();

}  // namespace ddprun::worker
