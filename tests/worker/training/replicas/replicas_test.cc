// One process, several devices. A CPU stands for each.
#include <c10/core/StreamGuard.h>
#include <ddprun/amp.h>
#include <ddprun/replicas.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/streams_alone.h"

namespace ddprun::worker {
namespace {

std::vector<at::Device> cpus(std::size_t count) { return {count, at::Device(at::kCPU)}; }

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(10, 12));
    norm = register_module("norm", torch::nn::BatchNorm1d(12));
    last = register_module("last", torch::nn::Linear(12, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return last(torch::tanh(norm(first(x))));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
  int calls = 0;
};
TORCH_MODULE(Net);

Net made_net() {
  torch::manual_seed(7);
  return Net();
}

double distance(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

class Replicas : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(TwoAndThree, Replicas, testing::Values(2, 3));

TEST_P(Replicas, GiveOutputAndGradientsOfOneCall) {
  auto plain = made_net();
  auto split = made_net();
  plain->eval();  // the statistics of a batch are not those of its parts
  split->eval();
  auto input = torch::randn({7, 10});
  auto whole_input = input.clone().requires_grad_();
  auto split_input = input.clone().requires_grad_();
  const auto expected = plain->forward(whole_input);
  const auto output = data_parallel(split, split_input, cpus(static_cast<std::size_t>(GetParam())));
  EXPECT_LE(distance(output, expected), 1e-6);
  expected.pow(2).sum().backward();
  output.pow(2).sum().backward();
  EXPECT_LE(distance(split_input.grad(), whole_input.grad()), 1e-6);
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    EXPECT_LE(distance(split->parameters()[i].grad(), plain->parameters()[i].grad()), 1e-6);
  EXPECT_EQ(split->calls, 0) << "the copies run, not the module";
}

TEST_P(Replicas, TrainAsOneModuleDoes) {
  auto plain = made_net();
  auto split = made_net();
  plain->eval();
  split->eval();
  for (int step = 0; step < 5; ++step) {
    const auto input = torch::randn({9, 10});
    plain->zero_grad();
    split->zero_grad();
    plain->forward(input).pow(2).mean().backward();
    data_parallel(split, input, cpus(static_cast<std::size_t>(GetParam())))
        .pow(2)
        .mean()
        .backward();
    const at::NoGradGuard no_grad;
    for (auto& net : {plain, split})
      for (at::Tensor& parameter : net->parameters()) parameter.sub_(0.1 * parameter.grad());
  }
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    EXPECT_LE(distance(split->parameters()[i], plain->parameters()[i]), 1e-6);
}

TEST(ReplicasOnCpu, ASmallBatchUsesFewer) {
  EXPECT_EQ(scatter(torch::zeros({2, 10}), cpus(3), 0).size(), 2u);
  const auto parts = scatter(torch::zeros({7, 10}), cpus(3), 0);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size(0), 3);
  EXPECT_EQ(parts[2].size(0), 1);
  auto net = made_net();
  net->eval();
  const auto input = torch::randn({2, 10});
  EXPECT_LE(distance(data_parallel(net, input, cpus(3)), net->forward(input)), 1e-6);
  // One sample is one part: the module itself runs.
  data_parallel(net, input.slice(0, 0, 1), cpus(3));
  EXPECT_EQ(net->calls, 2);
  data_parallel(net, input, {});
  EXPECT_EQ(net->calls, 3);
}

TEST(ReplicasOnCpu, BuffersAreThoseOfTheFirst) {
  auto net = made_net();
  auto first_alone = made_net();
  const auto input = torch::randn({8, 10});
  data_parallel(net, input, cpus(2));
  first_alone->forward(input.slice(0, 0, 4));
  EXPECT_LE(distance(net->norm->running_mean, first_alone->norm->running_mean), 1e-7);
  EXPECT_LE(distance(net->norm->running_var, first_alone->norm->running_var), 1e-7);
  EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 1);
}

TEST(ReplicasOnCpu, ModesOfTheCallerHold) {
  auto net = made_net();
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(data_parallel(net, torch::randn({4, 10}), cpus(2)).requires_grad());
  }
  const Autocast autocast(at::kCPU);
  EXPECT_EQ(data_parallel(net, torch::randn({4, 10}), cpus(2)).scalar_type(), at::kBFloat16);
}

TEST(RunOnDevices, StreamsOfTheCallerHold) {
  const StreamsAlone& guard = StreamsAlone::registered();
  const std::vector<at::Device> devices = {{guard.type(), 0}, {guard.type(), 1}};
  const std::vector<c10::Stream> own = {StreamsAlone::stream(devices[0], 3),
                                        StreamsAlone::stream(devices[1], 5)};
  const c10::MultiStreamGuard callers(own);
  std::array<std::array<c10::StreamId, 2>, 2> seen{};
  std::array<int, 2> on{};
  run_on_devices(devices, [&](std::size_t i) {
    on[i] = guard.getDevice().index();
    for (std::size_t d = 0; d < devices.size(); ++d) seen[i][d] = guard.getStream(devices[d]).id();
  });
  EXPECT_EQ(on, (std::array<int, 2>{0, 1}));
  for (const auto& streams : seen) EXPECT_EQ(streams, (std::array<c10::StreamId, 2>{3, 5}));
  EXPECT_EQ(guard.getStream(devices[0]).id(), 3);
}

TEST(ReplicasOnCpu, FrozenParametersStayWithoutGradient) {
  auto net = made_net();
  net->first->weight.requires_grad_(false);
  data_parallel(net, torch::randn({4, 10}), cpus(2)).sum().backward();
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_TRUE(net->last->weight.grad().defined());
}

struct FailingImpl : torch::nn::Cloneable<FailingImpl> {
  FailingImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({1})); }
  at::Tensor forward(const at::Tensor& x) {
    if (x[0].item<float>() > 0)
      throw std::runtime_error("part " + std::to_string(x[0].item<int>()));
    return (x * weight).sum();
  }
  at::Tensor weight;
};
TORCH_MODULE(Failing);

TEST(ReplicasOnCpu, TheFirstExceptionComesOut) {
  Failing net;
  try {
    data_parallel(net, torch::tensor({0.0F, 1.0F, 2.0F}), cpus(3));
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "part 1");
  }
  // Scalars of the copies become one dimension.
  EXPECT_EQ(data_parallel(net, torch::tensor({0.0F, -1.0F, -2.0F}), cpus(3)).sizes(),
            (std::vector<std::int64_t>{3}));
}

TEST(ReplicasOnCpu, RefuseWhatCannotBeSplit) {
  auto net = made_net();
  EXPECT_THROW(data_parallel(net, torch::ones({}), cpus(2)), std::invalid_argument);
  net->register_buffer("elsewhere", torch::empty({1}, at::kMeta));
  EXPECT_THROW(data_parallel(net, torch::randn({4, 10}), cpus(2)), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
