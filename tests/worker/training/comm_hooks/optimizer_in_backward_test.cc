// Steps that backward() makes, in forked ranks.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 5;

struct Net {
  Net() {
    torch::manual_seed(3);
    layers = torch::nn::Sequential(torch::nn::Linear(8, 6), torch::nn::Tanh(),
                                   torch::nn::Linear(6, 4), torch::nn::Linear(4, 3));
  }
  torch::nn::Sequential layers{nullptr};
};

torch::Tensor loss_of(DataParallel& parallel, Net& net, int step, int rank) {
  torch::manual_seed(100 * step + rank);
  return parallel.forward(net.layers, torch::randn({5, 8})).pow(2).mean();
}

using Train = std::function<void(DataParallel&, Net&, Collective&)>;

std::vector<at::Tensor> weights_after(const Train& train, Collective& collective, bool view) {
  Net net;
  DataParallel parallel(net.layers.ptr(), collective,
                        {.bucket_cap_bytes = 120, .gradient_as_bucket_view = view});
  train(parallel, net, collective);
  return net.layers->parameters();
}

template <typename Optimizer, typename Options>
void expect_same_weights(Collective& collective, const Options& options) {
  for (const bool view : {true, false}) {
    const auto plain = weights_after(
        [&options](DataParallel& parallel, Net& net, Collective& ranks) {
          Optimizer optimizer(net.layers->parameters(), options);
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            loss_of(parallel, net, step, ranks.rank()).backward();
            parallel.step(optimizer);
          }
        },
        collective, view);
    const auto in_backward = weights_after(
        [&options](DataParallel& parallel, Net& net, Collective& ranks) {
          parallel.step_in_backward(optimizer_in_backward<Optimizer>(*net.layers, options));
          for (int step = 0; step < kSteps; ++step) {
            loss_of(parallel, net, step, ranks.rank()).backward();
            for (const at::Tensor& parameter : net.layers->parameters())
              EXPECT_FALSE(parameter.grad().defined());
          }
        },
        collective, view);
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(torch::equal(plain[i], in_backward[i])) << i << " view " << view;
  }
}

TEST(OptimizerInBackward, GivesTheWeightsOfOneOptimizer) {
  run_torch_ranks(3, [](Collective& collective) {
    expect_same_weights<torch::optim::SGD>(
        collective, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
    expect_same_weights<torch::optim::AdamW>(collective, torch::optim::AdamWOptions(0.01));
  });
}

TEST(OptimizerInBackward, LeavesAloneWhatNobodyUses) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.find_unused_parameters = true});
    parallel.step_in_backward(
        optimizer_in_backward<torch::optim::SGD>(*net, torch::optim::SGDOptions(1.0)));
    parallel.forward(net, torch::full({4}, 2.0), false).sum().backward();
    EXPECT_EQ(first_of(net->first), -1.0F);
    EXPECT_EQ(first_of(net->rare), 1.0F);
    // Rank 1 alone uses it: the average of 0 and x · first · second = 2.
    parallel.forward(net, torch::full({4}, 2.0), collective.rank() == 1).sum().backward();
    EXPECT_EQ(first_of(net->rare), 0.0F);
  });
}

TEST(OptimizerInBackward, StepsOnceAfterPassesUnderNoSync) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    int steps = 0;
    parallel.step_in_backward([&steps](at::Tensor& parameter) {
      ++steps;
      EXPECT_EQ(first_of(parameter.grad()), 8.0F);
    });
    const auto x = torch::full({4}, collective.rank() == 0 ? 2.0 : 6.0);
    {
      const auto no_sync = parallel.no_sync();
      parallel.forward(net, x).sum().backward();
    }
    EXPECT_EQ(steps, 0);
    parallel.forward(net, x).sum().backward();
    EXPECT_EQ(steps, 3);
  });
}

TEST(OptimizerInBackward, RefusesASecondOneAndStepsBesideIt) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    Chain net;
    DataParallel parallel(net.ptr(), *alone);
    const auto nothing = [](at::Tensor&) {};
    parallel.step_in_backward(nothing);
    EXPECT_THROW(parallel.step_in_backward(nothing), std::runtime_error);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    parallel.forward(net, torch::ones({4})).sum().backward();
    EXPECT_THROW(parallel.step(optimizer), std::runtime_error);
  });
}

TEST(OptimizerInBackward, ThatThrowsLeavesThePassUnfinished) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    Chain net;
    DataParallel parallel(net.ptr(), *alone);
    parallel.step_in_backward([](at::Tensor&) { throw std::runtime_error("no step today"); });
    const auto out = parallel.forward(net, torch::ones({4})).sum();
    EXPECT_THROW(out.backward(), std::runtime_error);
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

// Rank 0 has stepped the first buckets when rank 1 gives the pass up: reset() must not hide it.
TEST(OptimizerInBackward, ThatHasSteppedCannotBeGivenUp) {
  PipeExchange launched(2);  // rank 0's last gradient is there: its first two buckets are launched
  run_torch_ranks(2, [&launched](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1});
    parallel.step_in_backward(
        optimizer_in_backward<torch::optim::SGD>(*net, torch::optim::SGDOptions(0.1)));
    parallel.forward(net, torch::ones({4})).sum().backward();
    const auto out = parallel.forward(net, torch::ones({4})).sum();
    ASSERT_EQ(parallel.buckets().size(), 3U);
    net->first.register_hook([&](const torch::Tensor& /*gradient*/) {
      EXPECT_TRUE(launched.arrive().has_value());
      if (collective.rank() == 0) return;
      collective.progress();  // adds this rank's part of the two
      throw std::runtime_error("rank 1 gives up");
    });
    EXPECT_NE(message_of([&] { out.backward(); }), "");
    const std::string message = message_of([&] { parallel.reset(); });
    EXPECT_NE(message.find("reset: step_in_backward() has stepped"), std::string::npos) << message;
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

}  // namespace
}  // namespace ddprun::worker
