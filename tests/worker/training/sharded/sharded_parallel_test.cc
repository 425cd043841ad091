// ShardedParallel in forked ranks: over shared memory, and over TCP, where parameters come and go.
// That Python's fully_shard ends alike: python_parity/sharded_parity_test.py.
#include <ddprun/checkpoint.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/sharded_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/training/sharded/sharded_training.h"
#include "worker/training/sharded/units.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 20;
constexpr int kBatch = 6;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool with_bias = true) {
    torch::manual_seed(1);
    const auto linear = [with_bias](std::int64_t from, std::int64_t to) {
      return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(with_bias));
    };
    first = register_module("first", linear(12, 40));
    second = register_module("second", linear(40, 33));
    last = register_module("last", linear(33, 5));
  }
  // `call` is called with each module and its input.
  template <typename Call>
  at::Tensor run(const at::Tensor& x, const Call& call) {
    return call(last, torch::tanh(call(second, torch::tanh(call(first, x)))));
  }
  at::Tensor forward(const at::Tensor& x) {
    return run(x, [](auto& module, const at::Tensor& input) { return module->forward(input); });
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

const std::vector<std::string> kUnits{"first", "second", "last"};

at::Tensor run_units(ShardedParallel& sharded, Net& net, const at::Tensor& x) {
  return net->run(
      x, [&](auto& module, const at::Tensor& input) { return sharded.forward(module, input); });
}

// The batch of all ranks.
at::Tensor joined_batch(int step, int ranks) {
  torch::manual_seed(100 + step);
  return torch::randn({ranks * kBatch, 12});
}

at::Tensor batch_of(int step, const Collective& ranks) {
  return joined_batch(step, ranks.world_size()).narrow(0, ranks.rank() * kBatch, kBatch);
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().mean(); }

template <typename Optimizer, typename Options>
torch::OrderedDict<std::string, at::Tensor> train_sharded(Collective& ranks, Net net,
                                                          const Options& options,
                                                          at::ScalarType type = at::kFloat) {
  net->to(type);
  ShardedParallel sharded(net.ptr(), ranks, kUnits);
  Optimizer optimizer(sharded.shards(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(run_units(sharded, net, batch_of(step, ranks).to(type))).backward();
    sharded.step(optimizer);
  }
  return sharded.full_state_dict();
}

void expect_close(const torch::OrderedDict<std::string, at::Tensor>& state,
                  const torch::nn::Module& expected) {
  ASSERT_EQ(state.size(), expected.named_parameters().size());
  for (const auto& item : expected.named_parameters()) {
    const double error = (state[item.key()] - item.value()).abs().max().item<double>();
    EXPECT_LE(error, 1e-6) << item.key();
  }
}

// One process with the batches of all ranks.
template <typename Optimizer, typename Options>
Net train_joined(int ranks, const Options& options, at::ScalarType type) {
  Net net;
  net->to(type);
  Optimizer optimizer(net->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net->forward(joined_batch(step, ranks).to(type))).backward();
    optimizer.step();
  }
  return net;
}

template <typename Optimizer, typename Options>
void expect_as_joined(Collective& ranks, const Options& options, at::ScalarType type = at::kFloat) {
  const auto state = train_sharded<Optimizer>(ranks, Net(), options, type);
  if (ranks.rank() == 0)
    expect_close(state, *train_joined<Optimizer>(ranks.world_size(), options, type));
  else
    EXPECT_TRUE(state.is_empty());
}

void expect_as_joined(Collective& ranks) {
  expect_as_joined<SGD>(ranks, SGD::Options(0.1).momentum(0.9));
  // Adam divides what rounding leaves of tiny gradients by numbers as tiny.
  expect_as_joined<Adam>(ranks, Adam::Options(0.01), at::kDouble);
}

TEST(ShardedParallel, EndsAsOneProcessWithTheJoinedBatch) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      expect_as_joined(collective);
      PassingCollective sends(collective);  // it shows nobody the others' memory
      if (collective.world_size() > 1) expect_as_joined(sends);
    });
  }
}

TEST(ShardedParallel, EndsAsOneProcessOverTcp) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(tcp_ranks(ranks), [](Collective& collective) { expect_as_joined(collective); });
  }
}

// Gives each unit, and each bucket, one parameter. Then the sums of more than two ranks have the
// same order, too.
void expect_bits_of_data_parallel(Collective& ranks) {
  const SGD::Options options = SGD::Options(0.1).momentum(0.9);
  const auto state = train_sharded<SGD>(ranks, Net(false), options);
  Net net(false);
  DataParallel parallel(net.ptr(), ranks,
                        {.bucket_cap_bytes_list = {1}, .gradient_as_bucket_view = false});
  SGD optimizer(net->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(parallel.forward(net, batch_of(step, ranks))).backward();
    parallel.step(optimizer);
  }
  for (const auto& item : state)
    EXPECT_TRUE(torch::equal(item.value(), net->named_parameters()[item.key()])) << item.key();
  EXPECT_EQ(state.size(), ranks.rank() == 0 ? 3U : 0U);
}

TEST(ShardedParallel, HasTheBitsOfDataParallel) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(ranks, expect_bits_of_data_parallel);
    run_torch_ranks(tcp_ranks(ranks), expect_bits_of_data_parallel);
  }
}

TEST(ShardedParallel, AddsGradientsOfSeveralPassesAndEvaluatesBetween) {
  const auto body = [](Collective& ranks) {
    at::set_num_threads(1);
    Net net;
    ShardedParallel sharded(net.ptr(), ranks, kUnits);
    SGD optimizer(sharded.shards(), SGD::Options(0.1));
    for (int step = 0; step < 2; ++step) {
      {
        const torch::NoGradGuard no_grad;
        run_units(sharded, net, batch_of(step, ranks));
      }
      loss_of(run_units(sharded, net, batch_of(step, ranks))).backward();
    }
    sharded.step(optimizer);
    const auto state = sharded.full_state_dict();
    if (ranks.rank() != 0) return;
    Net whole;
    SGD plain(whole->parameters(), SGD::Options(0.1));
    for (int step = 0; step < 2; ++step)
      loss_of(whole->forward(joined_batch(step, ranks.world_size()))).backward();
    plain.step();
    expect_close(state, *whole);
  };
  run_ranks(2, body);
  run_ranks(tcp_ranks(2), body);
}

TEST(ShardedParallel, SumsOnceWhatHasAccumulatedWithoutSync) {
  const auto body = [](Collective& ranks) {
    at::set_num_threads(1);
    Net once, twice;
    ShardedParallel sharded(once.ptr(), ranks, kUnits), other(twice.ptr(), ranks, kUnits);
    SGD optimizer(sharded.shards(), SGD::Options(0.1));
    // Forwards may run ahead of their backwards.
    const auto first = loss_of(run_units(sharded, once, batch_of(0, ranks)));
    const auto second = loss_of(run_units(sharded, once, batch_of(1, ranks)));
    sharded.set_gradient_sync(false);
    first.backward();
    for (const at::Tensor& shard : sharded.shards()) EXPECT_FALSE(shard.grad().defined());
    EXPECT_EQ(message_of([&] { sharded.step(optimizer); }),
              "ShardedParallel: the gradients of unit 'first' are not summed: call "
              "set_gradient_sync(true) before the last backward()");
    sharded.set_gradient_sync(true);
    second.backward();
    for (int step = 0; step < 2; ++step)
      loss_of(run_units(other, twice, batch_of(step, ranks))).backward();
    for (std::size_t unit = 0; unit < kUnits.size(); ++unit)
      EXPECT_TRUE(torch::allclose(sharded.shards()[unit].grad(), other.shards()[unit].grad()));
    sharded.step(optimizer);
  };
  run_torch_ranks(2, body);
  run_torch_ranks(tcp_ranks(2), body);
}

// A unit used twice, in another order than it was named. One that is not used; a parameter without
// a gradient.
TEST(ShardedParallel, TakesUnitsInAnyOrder) {
  const auto body = [](Collective& ranks) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8),
                              torch::nn::Linear(8, 8));
    auto& linears = *net;
    std::vector<torch::nn::Linear> linear;
    for (std::size_t i = 0; i < 3; ++i) linear.emplace_back(linears.ptr<torch::nn::LinearImpl>(i));
    const auto weights = linear[0]->weight.detach().clone();
    const auto unused = linear[2]->weight.detach().clone();
    ShardedParallel sharded(net.ptr(), ranks, {"0", "1", "2"});
    SGD optimizer(sharded.shards(), SGD::Options(0.1));
    const auto x = torch::ones({1, 8});
    for (int pass = 0; pass < 3; ++pass) {
      optimizer.zero_grad();
      const auto y = sharded.forward(linear[1], x);
      sharded.forward(linear[1], sharded.forward(linear[0], y)).sum().backward();
      sharded.step(optimizer);
      EXPECT_FALSE(sharded.shards()[2].grad().defined());
    }
    const auto state = sharded.full_state_dict();
    if (ranks.rank() != 0) return;
    EXPECT_FALSE(torch::equal(state["0.weight"], weights));
    EXPECT_TRUE(torch::equal(state["2.weight"], unused));
  };
  run_ranks(2, body);
  run_ranks(tcp_ranks(2), body);
}

// Rank 0's, whatever the others have made.
TEST(ShardedParallel, BeginsWithTheParametersAndBuffersOfRankZero) {
  const auto body = [](Collective& ranks) {
    at::set_num_threads(1);
    torch::nn::BatchNorm1d net(70);
    const torch::NoGradGuard no_grad;
    net->weight.fill_(ranks.rank() + 5);
    net->running_mean.fill_(ranks.rank() + 6);
    ShardedParallel sharded(net.ptr(), ranks, {""});
    EXPECT_EQ(first_of(net->running_mean), 6);
    EXPECT_EQ(sharded.shares_memory(), ranks.name() == "shm");
    for (const at::Tensor& shard : sharded.shards())
      EXPECT_EQ(first_of(shard), ranks.rank() == 0 ? 5 : 0);
    sharded.forward(net, torch::ones({2, 70}));
    const auto state = sharded.full_state_dict();
    if (ranks.rank() != 0) return;
    EXPECT_EQ(state.size(), 5U);
    EXPECT_TRUE(torch::equal(state["weight"], torch::full({70}, 5.F)));
  };
  run_ranks(2, body);
  run_ranks(tcp_ranks(2), body);
}

// Trains as ranks on several GPUs do, with the memory of CPUs. unit_flow_test.cc has the order of
// streams.
torch::OrderedDict<std::string, at::Tensor> train_on_streams(Collective& ranks) {
  Net net;
  ShardedTraining sharded(net.ptr(), ranks, kUnits, make_stream_units);
  SGD optimizer(sharded.shards(), SGD::Options(0.1).momentum(0.9));
  const auto call = [&](auto& module, const at::Tensor& input) {
    const std::size_t unit = sharded.before_forward(*module);
    at::Tensor output = module->forward(input);
    sharded.after_forward(unit, {&output});
    return output;
  };
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net->run(batch_of(step, ranks), call)).backward();
    sharded.begin_step(optimizer.param_groups()[0].params());
    optimizer.step();
    sharded.end_step();
  }
  EXPECT_FALSE(sharded.shares_memory());
  EXPECT_GT(sharded.received_bytes(), 0U);
  return sharded.full_state_dict();
}

TEST(ShardedParallel, EndsAsOneProcessWithTheUnitsOfSeveralGpus) {
  for (const int ranks : {2, 3}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      const auto state = train_on_streams(collective);
      if (collective.rank() != 0) return;
      const auto options = SGD::Options(0.1).momentum(0.9);
      expect_close(state, *train_joined<SGD>(collective.world_size(), options, at::kFloat));
    });
  }
}

TEST(ShardedParallel, RefusesUnitsThatCannotBe) {
  run_torch_ranks(2, [](Collective& ranks) {
    const auto why = [&](const std::vector<std::string>& units) {
      Net net;
      return message_of([&] { ShardedParallel(net.ptr(), ranks, units); });
    };
    EXPECT_EQ(
        why({"first", "second"}),
        "ShardedParallel: parameter 'last.weight' is in no unit: name the module that it is used "
        "in");
    EXPECT_EQ(
        why({"first", ""}),
        "ShardedParallel: parameter 'first.weight' lies in the units 'first' and '': units do not "
        "nest");
    EXPECT_EQ(why({"third"}), "ShardedParallel: no module is named 'third'");
    EXPECT_EQ(why({}), "ShardedParallel: expected the name of a unit, or several: none is there");
    Net frozen;
    frozen->second->bias.set_requires_grad(false);
    EXPECT_EQ(
        message_of([&] { ShardedParallel(frozen.ptr(), ranks, kUnits); }),
        "ShardedParallel: parameter 'second.bias' of unit 'second' is frozen: all parameters of a "
        "unit are trained");
    Net net;
    ShardedParallel sharded(net.ptr(), ranks, kUnits);
    EXPECT_EQ(message_of([&] {
                sharded.forward(net, torch::ones({1, 12}));
              }),
              "ShardedParallel: forward() got a module that is no unit");
    SGD optimizer(sharded.shards(), SGD::Options(0.1));
    loss_of(run_units(sharded, net, batch_of(0, ranks))).backward();
    optimizer.step();
    EXPECT_NE(message_of([&] {
                run_units(sharded, net, batch_of(0, ranks));
              }).find("was changed outside of step()"),
              std::string::npos);
  });
}

TEST(ShardedParallel, RefusesAnOptimizerOfTheParametersAndACheckpointOfShards) {
  const auto refuses = [](Collective& ranks) {
    at::set_num_threads(1);
    Net net;
    ShardedParallel sharded(net.ptr(), ranks, kUnits);
    SGD wrong(net->parameters(), SGD::Options(0.1));
    loss_of(run_units(sharded, net, batch_of(0, ranks))).backward();
    EXPECT_EQ(
        message_of([&] { sharded.step(wrong); }),
        "ShardedParallel: the optimizer has the module's parameters, and would step nothing: make "
        "it with "
        "sharded.shards()");
    SGD right(sharded.shards(), SGD::Options(0.1));
    const std::string path =
        ::testing::TempDir() + "sharded_" + std::to_string(::getppid()) + ".pt";
    std::string why;
    try {
      save_checkpoint(path, {*net, right, ranks}, {.epoch = 1});
    } catch (const CheckpointError& error) {
      why = error.what();
    }
    EXPECT_EQ(why.find("full_state_dict()") != std::string::npos, ranks.rank() == 0) << why;
  };
  run_torch_ranks(2, refuses);
  run_ranks(tcp_ranks(2), refuses);
}

TEST(ShardedParallel, CannotBeUsedAfterABackwardThatFailed) {
  run_torch_ranks(2, [](Collective& ranks) {
    Net net;
    ShardedParallel sharded(net.ptr(), ranks, kUnits);
    SGD optimizer(sharded.shards(), SGD::Options(0.1));
    auto hidden = sharded.forward(net->first, batch_of(0, ranks));
    hidden.register_hook([](const at::Tensor& /*gradient*/) -> at::Tensor {
      throw std::runtime_error("a hook that fails");
    });
    const auto output = sharded.forward(net->last, sharded.forward(net->second, hidden));
    EXPECT_EQ(message_of([&] { loss_of(output).backward(); }), "a hook that fails");
    EXPECT_NE(message_of([&] { sharded.step(optimizer); }).find("ended with an exception"),
              std::string::npos);
    EXPECT_NE(message_of([&] { sharded.full_state_dict(); }).find("ended with an exception"),
              std::string::npos);
  });
}

// Over TCP: nothing of a unit is left behind, and using it is an error and no crash.
TEST(ShardedParallel, HasNoParametersBetweenPasses) {
  run_torch_ranks(tcp_ranks(2), [](Collective& ranks) {
    Net net;
    ShardedParallel sharded(net.ptr(), ranks, kUnits);
    loss_of(run_units(sharded, net, batch_of(0, ranks))).backward();
    for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.numel(), 0);
    EXPECT_NE(message_of([&] { net->forward(torch::ones({1, 12})); }), "");
  });
}

}  // namespace
}  // namespace ddprun::worker
