// SyncBatchNorm beside plain batch norm, in float64, over the batches of all ranks, joined.
#include <ddprun/data_parallel.h>
#include <ddprun/sync_batch_norm.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn.h>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

using torch::nn::BatchNormOptions;
constexpr std::int64_t kChannels = 5;
constexpr double kTolerance = 1e-6;

// Returns a rank's batch: (n, channels), with `beyond` more dimensions. Rank 1's batch is empty,
// and no two are alike.
at::Tensor batch_of(int rank, std::int64_t beyond) {
  torch::manual_seed(100 + rank);
  std::vector<std::int64_t> sizes{rank == 1 ? 0 : 3 + 2 * rank, kChannels};
  for (std::int64_t i = 0; i < beyond; ++i) sizes.push_back(3 + i);
  return torch::randn(sizes, torch::kDouble) * 2 + 3 * rank;
}

at::Tensor joined(int ranks, std::int64_t beyond) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(batch_of(rank, beyond));
  return torch::cat(all);
}

at::Tensor own_part(const at::Tensor& of_all, int rank, std::int64_t beyond) {
  std::int64_t begin = 0;
  for (int before = 0; before < rank; ++before) begin += batch_of(before, beyond).size(0);
  return of_all.narrow(0, begin, batch_of(rank, beyond).size(0));
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return a.numel() == 0 ? 0
                        : (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

// A loss with another gradient for each value.
at::Tensor loss_of(const at::Tensor& y, const at::Tensor& x) {
  return (y * y * y.sin() * x.cos()).sum();
}

// Plain batch norm on the joined batch.
struct Reference {
  Reference(int ranks, std::int64_t beyond, const BatchNormOptions& options, at::ScalarType type) {
    x = joined(ranks, beyond).to(type).to(torch::kDouble).requires_grad_();
    if (options.affine()) {
      weight = torch::linspace(0.5, 2, kChannels, torch::kDouble).requires_grad_();
      bias = torch::linspace(-1, 1, kChannels, torch::kDouble).requires_grad_();
    }
    mean = torch::zeros(kChannels, torch::kDouble);
    variance = torch::ones(kChannels, torch::kDouble);
    for (int step = 1; step <= 2; ++step) {
      y = torch::batch_norm(x, weight, bias, mean, variance, true,
                            options.momentum().value_or(1.0 / step), options.eps(), false);
    }
    loss_of(y, x.detach()).backward();
  }
  at::Tensor x, y, weight, bias, mean, variance;
};

void expect_as_joined(Collective& ranks, std::int64_t beyond, const BatchNormOptions& options,
                      at::ScalarType type) {
  const Reference plain(ranks.world_size(), beyond, options, type);
  SyncBatchNorm norm(options, ranks);
  if (options.affine()) {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(plain.weight);
    norm->bias.copy_(plain.bias);
  }
  const at::Tensor x = batch_of(ranks.rank(), beyond).to(type).requires_grad_();
  norm(x);
  const at::Tensor before = x.detach().clone();
  const at::Tensor y = norm(x);
  EXPECT_EQ(y.scalar_type(), type);
  loss_of(y.to(torch::kDouble), x.detach().to(torch::kDouble)).backward();
  EXPECT_TRUE(torch::equal(x, before));
  // A float32 has 24 bits: numbers above 8 are farther apart than the tolerance.
  const auto relative = [](const at::Tensor& ours, const at::Tensor& theirs) {
    const double most = theirs.numel() == 0 ? 0 : theirs.abs().max().item<double>();
    return distance(ours, theirs) / std::max(1.0, most);
  };
  EXPECT_LE(relative(y, own_part(plain.y, ranks.rank(), beyond)), kTolerance);
  EXPECT_LE(relative(x.grad(), own_part(plain.x.grad(), ranks.rank(), beyond)), kTolerance);
  if (options.track_running_stats()) {
    EXPECT_LE(relative(norm->running_mean, plain.mean), kTolerance);
    EXPECT_LE(relative(norm->running_var, plain.variance), kTolerance);
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
  }
  if (!options.affine()) return;
  // Each rank has its share of the gradient.
  TensorCollective tensors(ranks);
  for (const auto& [ours, theirs] :
       {std::pair(norm->weight, plain.weight), std::pair(norm->bias, plain.bias)}) {
    const at::Tensor sum = ours.grad().to(torch::kDouble);
    tensors.all_reduce(sum);
    EXPECT_LE(relative(sum, theirs.grad()), kTolerance);
  }
}

class SyncBatchNorms : public ::testing::TestWithParam<int> {};

TEST_P(SyncBatchNorms, AreBatchNormOfTheJoinedBatch) {
  run_torch_ranks(GetParam(), [](Collective& ranks) {
    for (const at::ScalarType type : {torch::kDouble, torch::kFloat}) {
      for (std::int64_t beyond = 0; beyond <= 3; ++beyond) {
        SCOPED_TRACE(beyond);
        expect_as_joined(ranks, beyond, BatchNormOptions(kChannels), type);
      }
      expect_as_joined(ranks, 1, BatchNormOptions(kChannels).momentum(std::nullopt).eps(1e-3),
                       type);
      expect_as_joined(ranks, 1, BatchNormOptions(kChannels).affine(false), type);
      expect_as_joined(ranks, 1, BatchNormOptions(kChannels).track_running_stats(false), type);
    }
  });
}

// A Sequential cannot hold another one: its forward() is a template.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(torch::nn::Sequential of) { body = register_module("body", of); }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  torch::nn::Sequential body;
};
TORCH_MODULE(Block);

// Convolution and batch norm, twice.
torch::nn::Sequential norm_net() {
  torch::manual_seed(3);
  const torch::nn::Sequential inner(torch::nn::Conv1d(4, 4, 1), torch::nn::BatchNorm1d(4),
                                    torch::nn::Tanh());
  torch::nn::Sequential net(torch::nn::Conv1d(kChannels, 4, 2), torch::nn::BatchNorm1d(4),
                            Block(inner));
  net->to(torch::kDouble);
  return net;
}

TEST_P(SyncBatchNorms, GiveTheJoinedBatchsGradientsUnderDataParallel) {
  run_torch_ranks(GetParam(), [](Collective& ranks) {
    auto plain = norm_net();
    const auto all = joined(ranks.world_size(), 1);
    plain->forward(all).square().sum().backward();
    auto net = norm_net();
    convert_sync_batch_norm(net.ptr(), ranks);
    DataParallel parallel(net.ptr(), ranks);
    EXPECT_EQ(parallel.log_record().numbers.at("has_sync_bn"), 1);
    const at::Tensor out = parallel.forward(net, batch_of(ranks.rank(), 1));
    (out.square().sum() * ranks.world_size()).backward();
    const auto ours = net->named_parameters();
    for (const auto& theirs : plain->named_parameters()) {
      const double most = theirs.value().grad().abs().max().item<double>();
      EXPECT_LE(distance(ours[theirs.key()].grad(), theirs.value().grad()),
                kTolerance * std::max(1.0, most))
          << theirs.key();
    }
    for (const auto& buffer : plain->named_buffers()) {
      EXPECT_LE(distance(net->named_buffers()[buffer.key()], buffer.value()), kTolerance)
          << buffer.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNorms, ::testing::Values(2, 3, 4));

TEST(SyncBatchNorm, DoesNothingWithOthersInEvaluationAndAlone) {
  run_torch_ranks(2, [](Collective& ranks) {
    CountingCollective counting(ranks);
    SyncBatchNorm norm(BatchNormOptions(kChannels), counting);
    norm->eval();
    const at::Tensor x = torch::randn({3, kChannels});
    EXPECT_TRUE(
        torch::equal(norm(x), torch::batch_norm(x, norm->weight, norm->bias, norm->running_mean,
                                                norm->running_var, false, 0.1, 1e-5, false)));
    EXPECT_EQ(counting.calls, 0);
    norm->train();
    norm(x);
    EXPECT_GT(counting.calls, 0);
  });
  const auto alone = make_alone_collective();
  CountingCollective counting(*alone);
  SyncBatchNorm norm(BatchNormOptions(kChannels), counting);
  torch::nn::BatchNorm1d plain(kChannels);
  const at::Tensor x = torch::randn({3, kChannels});
  EXPECT_TRUE(torch::equal(norm(x), plain(x)));
  EXPECT_TRUE(torch::equal(norm->running_var, plain->running_var));
  EXPECT_EQ(counting.calls, 0);
}

TEST(SyncBatchNorm, RefusesWhatCannotBeNormalised) {
  run_torch_ranks(2, [](Collective& ranks) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), ranks);
    EXPECT_EQ(message_of([&] {
                norm(torch::zeros({3, 4}));
              }),
              "SyncBatchNorm: expected an input of sizes (N, 5, …), got (3, 4)");
    const auto one = torch::zeros({ranks.rank(), kChannels});
    EXPECT_EQ(
        message_of([&] { norm(one); }),
        "Expected more than 1 value per channel when training, over the batches of all ranks");
    norm(torch::zeros({1, kChannels}));
  });
}

struct TypedNetImpl : torch::nn::Module {
  TypedNetImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    rest = register_module("rest", torch::nn::Sequential(torch::nn::BatchNorm1d(2)));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Sequential rest{nullptr};
};

TEST(Conversion, ReplacesTheChildrenOfSequentialAndKeepsTheirTensors) {
  const auto alone = make_alone_collective();
  const auto plain = torch::nn::BatchNorm1d(BatchNormOptions(2).affine(false));
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2),
                            Block(torch::nn::Sequential(plain)));
  net->eval();
  const auto before = net->named_parameters();
  const auto buffers = net->named_buffers();
  EXPECT_EQ(convert_sync_batch_norm(net.ptr(), *alone), net.ptr());
  const auto after = net->named_parameters();
  ASSERT_EQ(after.keys(), before.keys());
  for (const auto& parameter : before)
    EXPECT_TRUE(parameter.value().is_same(after[parameter.key()]));
  ASSERT_EQ(net->named_buffers().keys(), buffers.keys());
  for (const auto& buffer : buffers)
    EXPECT_TRUE(buffer.value().is_alias_of(net->named_buffers()[buffer.key()]));
  EXPECT_FALSE(net->ptr<SyncBatchNormImpl>(1)->is_training());
  net->train();
  net->forward(torch::randn({4, 3}));
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<std::int64_t>(), 1);
  EXPECT_EQ(buffers["2.body.0.num_batches_tracked"].item<std::int64_t>(), 1);
  const auto single = std::make_shared<torch::nn::BatchNorm2dImpl>(7);
  EXPECT_NE(std::dynamic_pointer_cast<SyncBatchNormImpl>(convert_sync_batch_norm(single, *alone)),
            nullptr);
  const auto volume = std::make_shared<torch::nn::BatchNorm3dImpl>(7);
  EXPECT_NE(std::dynamic_pointer_cast<SyncBatchNormImpl>(convert_sync_batch_norm(volume, *alone)),
            nullptr);
}

TEST(Conversion, NamesWhatItCannotReplaceAndChangesNothing) {
  const auto alone = make_alone_collective();
  const auto net = std::make_shared<TypedNetImpl>();
  EXPECT_EQ(
      message_of([&] { convert_sync_batch_norm(net, *alone); }),
      "convert_sync_batch_norm: 'norm' cannot be replaced: its parent calls it by its own type. "
      "Declare it as "
      "SyncBatchNorm there, or put it into a Sequential");
  EXPECT_NE(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(net->rest->ptr(0)), nullptr);
}

}  // namespace
}  // namespace ddprun::worker
