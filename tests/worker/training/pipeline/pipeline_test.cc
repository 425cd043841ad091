// A pipeline in forked ranks, beside the same layers in one process. Bits are equal in float64,
// since both compute micro-batch by micro-batch. That PyTorch's pipelining ends alike:
// python_parity/pipeline_parity_test.py.
#include <ddprun/optimizers.h>
#include <ddprun/pipeline.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/tensor_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

constexpr int kLayers = 4, kRows = 12, kFeatures = 5;
constexpr auto kSchedules = {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward};

// Layers [begin, end) of the model, with the same weights on each rank that has them.
struct LayersImpl : torch::nn::Module {
  LayersImpl(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      torch::manual_seed(10 + i);
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(kFeatures, kFeatures)));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Layers);

Layers stage_of(Collective& ranks) {
  const int each = kLayers / ranks.world_size();
  return Layers(ranks.rank() * each, (ranks.rank() + 1) * each);
}

at::Tensor batch_of(int seed, std::int64_t rows = kRows) {
  torch::manual_seed(seed);
  return torch::randn({rows, kFeatures}, torch::kDouble);
}

at::Tensor squared(const at::Tensor& outputs, const at::Tensor& targets) {
  return (outputs - targets).pow(2).mean();
}

// The model in one piece, with PyTorch's arithmetic: gradients of micro-batches are added, and then
// divided.
at::Tensor train_whole(Layers& whole, const at::Tensor& inputs, const at::Tensor& targets,
                       int micro_batches) {
  std::vector<at::Tensor> losses;
  const auto x = inputs.chunk(micro_batches), y = targets.chunk(micro_batches);
  for (std::size_t i = 0; i < x.size(); ++i) {
    losses.push_back(squared(whole(x[i]), y[i]));
    losses.back().backward();
  }
  for (auto& parameter : whole->parameters()) parameter.mutable_grad().div_(micro_batches);
  return torch::stack(losses).mean();
}

void expect_same_layers(Layers& mine, Layers& whole, bool gradients) {
  const auto all = whole->named_parameters();
  for (const auto& item : mine->named_parameters()) {
    const at::Tensor& other = all[item.key()];
    EXPECT_TRUE(gradients ? torch::equal(item.value().grad(), other.grad())
                          : torch::equal(item.value(), other))
        << item.key();
  }
}

void expect_as_whole(Collective& ranks, const PipelineOptions& options) {
  Layers mine = stage_of(ranks), whole(0, kLayers);
  Pipeline pipeline(pipeline_stage(mine), ranks, squared, options);
  SGD ours(mine->parameters(), SGD::Options(0.5)), theirs(whole->parameters(), SGD::Options(0.5));
  for (int step = 0; step < 3; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    const auto inputs = batch_of(step), targets = batch_of(100 + step);
    const auto loss = pipeline.forward_backward(inputs, targets);
    const auto wanted = train_whole(whole, inputs, targets, options.micro_batches);
    EXPECT_EQ(loss.defined(), pipeline.is_last());
    EXPECT_EQ(pipeline.from_last(loss), wanted.item<double>());
    expect_same_layers(mine, whole, true);
    ours.step();
    theirs.step();
  }
  expect_same_layers(mine, whole, false);
}

TEST(Pipeline, TrainsAsTheModelInOnePiece) {
  for (const int ranks : {1, 2, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      for (const auto schedule : kSchedules)
        for (const int micro_batches : {1, 2, 3, 6})
          expect_as_whole(collective, {.micro_batches = micro_batches, .schedule = schedule});
    });
  }
}

TEST(Pipeline, TrainsOverTcp) {
  RanksOptions options = tcp_ranks(4);
  run_torch_ranks(options, [](Collective& collective) {
    for (const auto schedule : kSchedules)
      expect_as_whole(collective, {.micro_batches = 6, .schedule = schedule});
  });
}

// Counts the graphs that are alive: each holds a token.
PipelineStage counted(Layers& layers, int& live, int& most) {
  auto stage = pipeline_stage(layers);
  stage.forward = [forward = stage.forward, &live, &most](const at::Tensor& x) {
    const at::Tensor y = forward(x);
    if (!y.requires_grad()) return y;
    most = std::max(most, ++live);
    const std::shared_ptr<int> token(&live, [](int* count) { --*count; });
    y.register_hook([token](const at::Tensor& gradient) { return gradient; });
    return y;
  };
  return stage;
}

TEST(Pipeline, KeepsAsManyActivationsAsTheScheduleSays) {
  run_torch_ranks(4, [](Collective& ranks) {
    for (const auto schedule : kSchedules) {
      for (const int micro_batches : {2, 6}) {
        Layers mine = stage_of(ranks);
        int live = 0, most = 0;
        Pipeline pipeline(counted(mine, live, most), ranks, squared,
                          {.micro_batches = micro_batches, .schedule = schedule});
        pipeline.forward_backward(batch_of(1), batch_of(2));
        const int behind = ranks.world_size() - ranks.rank();
        const int wanted =
            schedule == PipelineSchedule::kGPipe ? micro_batches : std::min(micro_batches, behind);
        EXPECT_EQ(most, wanted);
        EXPECT_EQ(pipeline.most_live(), wanted);
        EXPECT_EQ(live, 0);
        pipeline.forward(batch_of(1));
        EXPECT_EQ(pipeline.most_live(), wanted);
      }
    }
  });
}

// The module has one parameter under two names.
TEST(Pipeline, DividesTheGradientOfASharedParameterOnce) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() {
      register_module("one", layer);
      register_module("two", layer);
      to(torch::kDouble);
    }
    at::Tensor forward(const at::Tensor& x) { return layer(layer(x)); }
    torch::nn::Linear layer{kFeatures, kFeatures};
  };
  run_torch_ranks(1, [](Collective& ranks) {
    const auto net = std::make_shared<TwiceImpl>();
    ASSERT_EQ(net->parameters().size(), 4U);
    Pipeline pipeline(pipeline_stage(net), ranks, squared, {.micro_batches = 3});
    pipeline.forward_backward(batch_of(1), batch_of(2));
    const auto gradient = net->layer->weight.grad().clone();
    net->zero_grad();
    squared(net->forward(batch_of(1)), batch_of(2)).backward();
    EXPECT_TRUE(torch::allclose(gradient, net->layer->weight.grad()));
  });
}

// A rank in the middle may give placeholders of any size.
TEST(Pipeline, LooksAtNoBatchThatARankDoesNotNeed) {
  run_torch_ranks(3, [](Collective& ranks) {
    Pipeline pipeline(pipeline_stage(Layers(0, 1)), ranks, squared, {.micro_batches = 4});
    const bool middle = ranks.rank() == 1;
    const auto inputs = middle ? torch::empty({0}) : batch_of(1);
    const auto targets = middle ? torch::tensor(1.0) : batch_of(2);
    EXPECT_EQ(pipeline.forward_backward(inputs, targets).defined(), pipeline.is_last());
    EXPECT_EQ(pipeline.forward(inputs).defined(), pipeline.is_last());
  });
}

TEST(Pipeline, SumsTheLossesOfSamplesIfToldSo) {
  run_torch_ranks(2, [](Collective& ranks) {
    const auto sum = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).pow(2).sum(); };
    Layers mine = stage_of(ranks), whole(0, kLayers);
    Pipeline pipeline(pipeline_stage(mine), ranks, sum, {.micro_batches = 3, .mean_loss = false});
    const auto loss = pipeline.forward_backward(batch_of(1), batch_of(2));
    const auto wanted = sum(whole(batch_of(1)), batch_of(2));
    wanted.backward();
    EXPECT_TRUE(!pipeline.is_last() || torch::allclose(loss, wanted));
    EXPECT_TRUE(
        torch::allclose(mine->parameters()[0].grad(),
                        whole->named_parameters()[mine->named_parameters()[0].key()].grad()));
  });
}

TEST(Pipeline, MakesForwardsAloneOfAnotherBatch) {
  run_torch_ranks(4, [](Collective& ranks) {
    Layers mine = stage_of(ranks), whole(0, kLayers);
    Pipeline pipeline(pipeline_stage(mine), ranks, squared, {.micro_batches = 2});
    for (int i = 0; i < 2; ++i) {
      const auto inputs = batch_of(i, 20);
      // A rank that does not need the batch may give none.
      const auto outputs = pipeline.forward(pipeline.is_first() ? inputs : at::Tensor());
      EXPECT_EQ(outputs.defined(), pipeline.is_last());
      const torch::NoGradGuard no_gradients;
      EXPECT_TRUE(!outputs.defined() || torch::allclose(outputs, whole(inputs)));
      EXPECT_FALSE(outputs.defined() && outputs.requires_grad());
      const at::AutoGradMode gradients(true);
      pipeline.forward_backward(batch_of(i), batch_of(100 + i));
    }
  });
}

// Outputs of the stages in front live until they are sent.
TEST(Pipeline, ForwardsAloneKeepNoActivations) {
  run_torch_ranks(3, [](Collective& ranks) {
    int live = 0, most = 0;
    double number = 0;
    const auto counted = [&](const at::Tensor&) {
      most = std::max(most, ++live);
      return torch::from_blob(
          &number, {1, 1}, [&live](void*) { --live; }, torch::kDouble);
    };
    Pipeline pipeline({counted, {}}, ranks, nullptr, {.micro_batches = 4});
    const auto outputs = pipeline.forward(torch::ones({4, 1}));
    EXPECT_EQ(most, pipeline.is_last() ? 4 : 1);
    EXPECT_EQ(live, 0);
  });
}

TEST(Pipeline, ForwardsAloneNeedNoLoss) {
  run_torch_ranks(2, [](Collective& ranks) {
    Layers mine = stage_of(ranks);
    Pipeline pipeline(pipeline_stage(mine), ranks, nullptr);
    EXPECT_EQ(pipeline.forward(batch_of(1)).defined(), pipeline.is_last());
    EXPECT_EQ(message_of([&] { pipeline.forward_backward(batch_of(1), batch_of(1)); }),
              "Pipeline: forward_backward() needs a loss, and the last rank has none");
  });
}

// Layers in front that are frozen get no gradients: none travels.
TEST(Pipeline, SendsNoGradientsToFrozenStages) {
  run_torch_ranks(2, [](Collective& ranks) {
    CountingCollective counting(ranks);
    Layers mine = stage_of(ranks), whole(0, kLayers);
    for (auto& parameter : mine->parameters()) parameter.set_requires_grad(ranks.rank() == 1);
    Pipeline pipeline(pipeline_stage(mine), counting, squared, {.micro_batches = 3});
    const int before = counting.calls;
    pipeline.forward_backward(batch_of(1), batch_of(2));
    EXPECT_EQ(counting.calls - before, 1 + 3);  // the shape, and activations
    train_whole(whole, batch_of(1), batch_of(2), 3);
    if (ranks.rank() == 1) expect_same_layers(mine, whole, true);
  });
}

TEST(Pipeline, GivesZerosForAnInputThatAStageDoesNotUse) {
  run_torch_ranks(2, [](Collective& ranks) {
    Layers mine = stage_of(ranks);
    auto stage = pipeline_stage(mine);
    if (ranks.rank() == 1)
      stage.forward = [forward = stage.forward](const at::Tensor& x) {
        return forward(torch::ones_like(x));
      };
    Pipeline pipeline(stage, ranks, squared, {.micro_batches = 2});
    pipeline.forward_backward(batch_of(1), batch_of(2));
    const auto gradient = mine->parameters()[0].grad();
    EXPECT_EQ(gradient.abs().sum().item<double>() == 0, ranks.rank() == 0);
  });
}

// Both axes of a mesh are 2 long.
void expect_as_whole_beside_data(Collective& ranks, const PipelineOptions& options) {
  const Mesh mesh(ranks, {{"data", 2}, {"pipeline", 2}});
  Collective& stages = mesh.along("pipeline");
  CountingCollective data(mesh.along("data"));
  Layers mine = stage_of(stages), whole(0, kLayers);
  DataParallel parallel(mine.ptr(), data);
  Pipeline pipeline(pipeline_stage(mine, parallel), stages, squared, options);
  SGD ours(mine->parameters(), SGD::Options(0.5)), theirs(whole->parameters(), SGD::Options(0.5));
  for (int step = 0; step < 4; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    data.summed.clear();
    const int seed = 10 * step;
    pipeline.forward_backward(batch_of(seed + data.rank()), batch_of(seed + 5 + data.rank()));
    EXPECT_EQ(data.summed.size(), parallel.buckets().size());
    train_whole(whole, torch::cat({batch_of(seed), batch_of(seed + 1)}),
                torch::cat({batch_of(seed + 5), batch_of(seed + 6)}), 2 * options.micro_batches);
    parallel.step(ours);
    theirs.step();
  }
  const auto all = whole->named_parameters();
  for (const auto& item : mine->named_parameters())
    EXPECT_TRUE(torch::allclose(item.value(), all[item.key()])) << item.key();
  for (const auto& parameter : mine->parameters()) expect_equal_on_all_ranks(parameter, data);
}

TEST(Pipeline, GoesBesideDataParallelWhichSumsOnce) {
  run_torch_ranks(4, [](Collective& ranks) {
    for (const auto schedule : kSchedules)
      for (const int micro_batches : {1, 3})
        expect_as_whole_beside_data(ranks, {.micro_batches = micro_batches, .schedule = schedule});
  });
}

// A stage's layers are units that the ranks of the other axis shard. It ends as if each had a copy.
void expect_sharded_as_copied(Collective& ranks, const PipelineOptions& options) {
  const Mesh mesh(ranks, {{"data", 2}, {"pipeline", 2}});
  Collective& stages = mesh.along("pipeline");
  Collective& data = mesh.along("data");
  Layers mine = stage_of(stages), copied = stage_of(stages);
  std::vector<std::string> names;
  for (const auto& layer : mine->named_children()) names.push_back(layer.key());
  ShardedParallel sharded(mine.ptr(), data, names);
  DataParallel parallel(copied.ptr(), data);
  const auto forward = [&](at::Tensor x) {
    for (auto& layer : mine->layers) x = torch::tanh(sharded.forward(layer, x));
    return x;
  };
  Pipeline pipeline(pipeline_stage(forward, sharded), stages, squared, options);
  Pipeline other(pipeline_stage(copied, parallel), stages, squared, options);
  SGD ours(sharded.shards(), SGD::Options(0.5)), theirs(copied->parameters(), SGD::Options(0.5));
  const std::uint64_t before = sharded.received_bytes();
  for (int step = 0; step < 4; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    const auto x = batch_of(10 * step + data.rank()), y = batch_of(10 * step + 5 + data.rank());
    const auto loss = pipeline.forward_backward(x, y), wanted = other.forward_backward(x, y);
    EXPECT_TRUE(!pipeline.is_last() || torch::allclose(loss, wanted));
    sharded.step(ours);
    parallel.step(theirs);
  }
  if (sharded.shares_memory()) {
    std::uint64_t numbers = 0;
    for (const auto& shard : sharded.shards()) numbers += shard.numel();
    EXPECT_EQ(sharded.received_bytes() - before, 4 * numbers * sizeof(double));  // one sum a batch
  }
  const auto outputs = pipeline.forward(batch_of(1)), wanted = other.forward(batch_of(1));
  EXPECT_TRUE(!pipeline.is_last() || torch::allclose(outputs, wanted));
  const auto state = sharded.full_state_dict();
  EXPECT_EQ(state.size(), data.rank() == 0 ? 4U : 0U);
  for (const auto& item : state)
    EXPECT_TRUE(torch::allclose(item.value(), copied->named_parameters()[item.key()]));
}

TEST(Pipeline, HasStagesThatAreShardedAndSumsThemOnce) {
  for (const RanksOptions& options : {RanksOptions{.ranks = 4}, tcp_ranks(4)})
    run_torch_ranks(options, [](Collective& ranks) {
      for (const auto schedule : kSchedules)
        for (const int micro_batches : {1, 3})
          expect_sharded_as_copied(ranks, {.micro_batches = micro_batches, .schedule = schedule});
    });
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const TensorGroup& group)
      : up(register_module(
            "up", ColumnLinear(torch::nn::LinearOptions(kFeatures, 4 * kFeatures), group))),
        down(register_module(
            "down", RowLinear(torch::nn::LinearOptions(4 * kFeatures, kFeatures), group))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::relu(up(x))); }

  ColumnLinear up;
  RowLinear down;
};
TORCH_MODULE(Block);

TEST(Pipeline, HasStagesOfSplitLayersBesideDataParallel) {
  run_torch_ranks(8, [](Collective& ranks) {
    const Mesh mesh(ranks, {{"data", 2}, {"pipeline", 2}, {"tensor", 2}});
    Collective& stages = mesh.along("pipeline");
    Collective& data = mesh.along("data");
    const auto alone = make_alone_collective();
    std::vector<Block> whole;
    std::vector<at::Tensor> of_whole;
    for (int stage = 0; stage < 2; ++stage) {
      torch::manual_seed(stage);
      whole.emplace_back(TensorGroup(*alone));
      for (const auto& parameter : whole.back()->parameters()) of_whole.push_back(parameter);
    }
    torch::manual_seed(stages.rank());
    Block block(TensorGroup(mesh.along("tensor")));
    DataParallel parallel(block.ptr(), data);
    Pipeline pipeline(pipeline_stage(block, parallel), stages, squared, {.micro_batches = 3});
    SGD ours(block->parameters(), SGD::Options(0.5)), theirs(of_whole, SGD::Options(0.5));
    for (int step = 0; step < 3; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      const int seed = 10 * step;
      pipeline.forward_backward(batch_of(seed + data.rank()), batch_of(seed + 5 + data.rank()));
      const auto inputs = torch::cat({batch_of(seed), batch_of(seed + 1)});
      const auto targets = torch::cat({batch_of(seed + 5), batch_of(seed + 6)});
      squared(whole[1](whole[0](inputs)), targets).backward();
      parallel.step(ours);
      theirs.step();
    }
    const Block& same = whole[static_cast<std::size_t>(stages.rank())];
    EXPECT_TRUE(torch::allclose(block->up->whole()->weight, same->up->weight));
    EXPECT_TRUE(torch::allclose(block->down->whole()->weight, same->down->weight));
    EXPECT_TRUE(torch::allclose(block->down->bias, same->down->bias));
  });
}

// Parameters are sharded along one axis of a mesh, while layers are split along the other one.
TEST(Mesh, HasShardedParallelBesideSplitLayers) {
  run_torch_ranks(4, [](Collective& ranks) {
    const Mesh mesh(ranks, {{"data", 2}, {"tensor", 2}});
    const TensorGroup group(mesh.along("tensor"));
    Collective& data = mesh.along("data");
    torch::manual_seed(1);
    Block mine(group), copied(group);
    DataParallel parallel(copied.ptr(), data);
    {
      const torch::NoGradGuard no_gradients;
      for (std::size_t i = 0; i < mine->parameters().size(); ++i)
        mine->parameters()[i].copy_(copied->parameters()[i]);
    }
    ShardedParallel sharded(mine.ptr(), data, {"up", "down"});
    Adam ours(sharded.shards(), Adam::Options(0.1));
    Adam theirs(copied->parameters(), Adam::Options(0.1));
    for (int step = 0; step < 4; ++step) {
      const auto x = batch_of(10 * step + data.rank()), y = batch_of(10 * step + 5 + data.rank());
      ours.zero_grad();
      squared(x + sharded.forward(mine->down, torch::relu(sharded.forward(mine->up, x))), y)
          .backward();
      sharded.step(ours);
      theirs.zero_grad();
      squared(parallel.forward(copied, x), y).backward();
      parallel.step(theirs);
    }
    const auto state = sharded.full_state_dict();
    for (const auto& item : state)
      EXPECT_TRUE(torch::allclose(item.value(), copied->named_parameters()[item.key()]))
          << item.key();
    EXPECT_EQ(state.size(), data.rank() == 0 ? 4U : 0U);
  });
}

// The tutorial's model: its halves are on two devices of a process, here twice the CPU. Activations
// go from one to the other one inside forward(), and DataParallel averages both halves' gradients.
TEST(Pipeline, HalvesInOneProcessAreTrainedByDataParallelAsTheModelInOnePiece) {
  struct HalvesImpl : torch::nn::Module {
    explicit HalvesImpl(std::vector<at::Device> places)
        : devices(std::move(places)),
          first(register_module("first", Layers(0, 2))),
          second(register_module("second", Layers(2, 4))) {
      first->to(devices[0]);
      second->to(devices[1]);
    }
    at::Tensor forward(const at::Tensor& x) {
      return second(first(x.to(devices[0])).to(devices[1]));
    }
    std::vector<at::Device> devices;
    Layers first, second;
  };
  run_torch_ranks(2, [](Collective& ranks) {
    const auto halves = std::make_shared<HalvesImpl>(std::vector<at::Device>(2, at::kCPU));
    Layers whole(0, kLayers);
    DataParallel parallel(halves, ranks), plain(whole.ptr(), ranks);
    SGD ours(halves->parameters(), SGD::Options(0.5));
    SGD theirs(whole->parameters(), SGD::Options(0.5));
    for (int step = 0; step < 3; ++step) {
      const auto inputs = batch_of(10 * step + ranks.rank()), targets = batch_of(step);
      ours.zero_grad();
      theirs.zero_grad();
      squared(parallel.forward(halves, inputs), targets).backward();
      squared(plain.forward(whole, inputs), targets).backward();
      parallel.step(ours);
      plain.step(theirs);
    }
    for (std::size_t i = 0; i < whole->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(halves->parameters()[i], whole->parameters()[i])) << i;
  });
}

}  // namespace
}  // namespace ddprun::worker
