// SyncBatchNorm beside plain batch norm, in float64, over the batches of all ranks, joined.
#include <ddprun/data_parallel.h>
#include <ddprun/sync_batch_norm.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn.h>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/training/norm/fused_batch_norm.h"

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

// Stand-ins for CUDA's kernels, by what torch/nn/modules/_functions.py wants of them.
namespace played {

std::vector<std::int64_t> dims_of(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

at::Tensor wide(const at::Tensor& by_channel, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = by_channel.numel();
  return by_channel.view(sizes);
}

NormKernels::Two stats(const at::Tensor& input, double eps) {
  const auto type = input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const at::Tensor values = input.to(type);
  return {values.mean(dims_of(input)), (values.var(dims_of(input), false) + eps).rsqrt()};
}

// As batch_norm_reduce_statistics_kernel adds them up (Normalization.cuh of 2.11).
NormKernels::Two gather(const at::Tensor& /*input*/, const at::Tensor& means,
                        const at::Tensor& scales, const at::Tensor& mean,
                        const at::Tensor& variance, double eps, const at::Tensor& counts) {
  for (const at::Tensor& one : {means, scales, mean, variance, counts}) {
    EXPECT_EQ(one.scalar_type(), mean.scalar_type());
    EXPECT_TRUE(one.is_contiguous());
  }
  at::Tensor average = torch::zeros_like(mean);
  at::Tensor squares = torch::zeros_like(mean);
  at::Tensor n = torch::zeros_like(counts[0]);
  for (std::int64_t rank = 0; rank < counts.size(0); ++rank) {
    const at::Tensor count = counts[rank];
    const at::Tensor own = (scales[rank].pow(-2) - eps) * count;
    const at::Tensor factor = 1 / (n + count);
    squares = squares + own + (average - means[rank]).square() * n * count * factor;
    average = n * factor * average + count * factor * means[rank];
    n = n + count;
  }
  mean.copy_(average);
  variance.copy_(squares / (n - 1));
  return {average, (squares / n + eps).rsqrt()};
}

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& mean, const at::Tensor& scale, double /*eps*/) {
  for (const at::Tensor& one : {weight, bias, scale}) {
    EXPECT_EQ(one.scalar_type(), mean.scalar_type());
    EXPECT_TRUE(one.is_contiguous());
  }
  return ((input - wide(mean, input)) * wide(scale * weight, input) + wide(bias, input))
      .to(input.scalar_type());
}

NormKernels::Four sum_gradient(const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& mean, const at::Tensor& scale,
                               const at::Tensor& weight, bool of_weight, bool of_bias) {
  const at::Tensor sum = gradient.sum(dims_of(input));
  const at::Tensor product = (gradient * (input - wide(mean, input))).sum(dims_of(input));
  return {sum, product, of_weight ? (product * scale).to(weight.scalar_type()) : at::Tensor(),
          of_bias ? sum.to(weight.scalar_type()) : at::Tensor()};
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& weight,
                          const at::Tensor& sum, const at::Tensor& product,
                          const at::Tensor& counts) {
  EXPECT_EQ(counts.scalar_type(), torch::kInt);
  EXPECT_EQ(gradient.scalar_type(), input.scalar_type());
  for (const at::Tensor& one : {weight, sum, product, counts}) {
    if (!one.is_same(counts)) {
      EXPECT_EQ(one.scalar_type(), mean.scalar_type());
    }
    EXPECT_TRUE(one.is_contiguous());
  }
  const at::Tensor n = counts.sum().to(mean.scalar_type());
  const at::Tensor centred = input - wide(mean, input);
  return ((gradient - wide(sum / n, input) - centred * wide(product * scale.square() / n, input)) *
          wide(scale * weight, input))
      .to(input.scalar_type());
}

constexpr NormKernels kKernels{stats, gather, normalize, sum_gradient, input_gradient};

}  // namespace played

using Apply = at::Tensor (*)(Collective& ranks, SyncBatchNorm& norm, const at::Tensor& x);

at::Tensor apply_as_it_is(Collective& /*ranks*/, SyncBatchNorm& norm, const at::Tensor& x) {
  return norm(x);
}

// As on a GPU.
at::Tensor apply_fused(Collective& ranks, SyncBatchNorm& norm, const at::Tensor& x) {
  const auto& options = norm->options;
  const NormLayer layer{norm->weight,
                        norm->bias,
                        norm->running_mean,
                        norm->running_var,
                        norm->num_batches_tracked,
                        options.momentum(),
                        options.eps()};
  return fused_batch_norm(x, layer, ranks, std::make_shared<TensorCollective>(ranks),
                          played::kKernels);
}

void expect_as_joined(Collective& ranks, std::int64_t beyond, const BatchNormOptions& options,
                      at::ScalarType type, Apply apply = apply_as_it_is,
                      double tolerance = kTolerance) {
  const Reference plain(ranks.world_size(), beyond, options, type);
  SyncBatchNorm norm(options, ranks);
  if (options.affine()) {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(plain.weight);
    norm->bias.copy_(plain.bias);
  }
  const at::Tensor x = batch_of(ranks.rank(), beyond).to(type).requires_grad_();
  apply(ranks, norm, x);
  const at::Tensor before = x.detach().clone();
  const at::Tensor y = apply(ranks, norm, x);
  EXPECT_EQ(y.scalar_type(), type);
  loss_of(y.to(torch::kDouble), x.detach().to(torch::kDouble)).backward();
  EXPECT_TRUE(torch::equal(x, before));
  // A float32 has 24 bits: numbers above 8 are farther apart than the tolerance.
  const auto relative = [](const at::Tensor& ours, const at::Tensor& theirs) {
    const double most = theirs.numel() == 0 ? 0 : theirs.abs().max().item<double>();
    return distance(ours, theirs) / std::max(1.0, most);
  };
  EXPECT_LE(relative(y, own_part(plain.y, ranks.rank(), beyond)), tolerance);
  EXPECT_LE(relative(x.grad(), own_part(plain.x.grad(), ranks.rank(), beyond)), tolerance);
  if (options.track_running_stats()) {
    EXPECT_LE(relative(norm->running_mean, plain.mean), tolerance);
    EXPECT_LE(relative(norm->running_var, plain.variance), tolerance);
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
  }
  if (!options.affine()) return;
  // Each rank has its share of the gradient.
  TensorCollective tensors(ranks);
  for (const auto& [ours, theirs] :
       {std::pair(norm->weight, plain.weight), std::pair(norm->bias, plain.bias)}) {
    const at::Tensor sum = ours.grad().to(torch::kDouble);
    tensors.all_reduce(sum);
    EXPECT_LE(relative(sum, theirs.grad()), tolerance);
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

TEST_P(SyncBatchNorms, AreTheSameWithTheKernelsOfAGpu) {
  run_torch_ranks(GetParam(), [](Collective& ranks) {
    for (std::int64_t beyond = 0; beyond <= 3; ++beyond) {
      SCOPED_TRACE(beyond);
      const BatchNormOptions options(kChannels);
      expect_as_joined(ranks, beyond, options, torch::kDouble, apply_fused);
      expect_as_joined(ranks, beyond, options, torch::kFloat, apply_fused, 2e-5);
    }
    for (const auto& options : {BatchNormOptions(kChannels).momentum(std::nullopt).eps(1e-3),
                                BatchNormOptions(kChannels).affine(false),
                                BatchNormOptions(kChannels).track_running_stats(false)})
      expect_as_joined(ranks, 1, options, torch::kDouble, apply_fused);
  });
}

// Rank 0 is the first one whose numbers are added up.
TEST(FusedBatchNorm, TakesAnEmptyFirstRankAndOneValueInAll) {
  run_torch_ranks(2, [](Collective& ranks) {
    SyncBatchNorm norm(BatchNormOptions(2), ranks);
    const bool is_empty = ranks.rank() == 0;
    const at::Tensor x = torch::arange(is_empty ? 0 : 6).to(torch::kFloat).view({-1, 2});
    const at::Tensor y = apply_fused(ranks, norm, x);
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_LE(distance(norm->running_mean, torch::tensor({0.2F, 0.3F})), 1e-6);
    EXPECT_LE(distance(norm->running_var, torch::full({2}, 0.9F + 0.1F * 4)), 1e-6);
    apply_fused(ranks, norm, x.narrow(0, 0, is_empty ? 0 : 1));
    EXPECT_LE(distance(norm->running_var, torch::full({2}, 0.9F * 1.3F)), 1e-6)
        << "one value has no variance";
    EXPECT_LE(distance(norm->running_mean, torch::tensor({0.18F, 0.27F + 0.1F})), 1e-6);
  });
}

TEST(FusedBatchNorm, KeepsTheOrderOfMemoryAndTheType) {
  run_torch_ranks(2, [](Collective& ranks) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), ranks);
    const at::Tensor x = batch_of(0, 2)
                             .to(torch::kBFloat16)
                             .contiguous(at::MemoryFormat::ChannelsLast)
                             .requires_grad_();
    const at::Tensor y = apply_fused(ranks, norm, x);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(norm->weight.grad().scalar_type(), torch::kFloat);
    norm->zero_grad();
    norm->to(torch::kBFloat16);
    const at::Tensor parameters_too = apply_fused(ranks, norm, x);
    parameters_too.sum().backward();
    EXPECT_EQ(norm->weight.grad().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(norm->running_var.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(message_of([&] {
                torch::autograd::grad({apply_fused(ranks, norm, x).sum()}, {x}, {}, std::nullopt,
                                      /*create_graph=*/true);
              }),
              "SyncBatchNorm: its gradient cannot be differentiated again (create_graph)");
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
