// DataParallel, 16 bits and checkpoints on one GPU, over NCCL.
#include <ddprun/amp.h>
#include <ddprun/checkpoint.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/replicas.h>
#include <fmt/format.h>
#include <torch/optim.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "tests/worker/counted_operations.h"
#include "tests/worker/gpu/one_gpu.h"
#include "worker/checkpoint/module_values.h"

namespace ddprun::worker {
namespace {

class DataParallelOnGpu : public OneGpu {
 protected:
  // Those of `net` are `factor` times those of `plain`.
  static void expect_gradients(const torch::nn::Sequential& net, const torch::nn::Sequential& plain,
                               double factor, const char* how) {
    const auto ours = net->parameters();
    const auto theirs = plain->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor expected = theirs[i].grad() * factor;
      EXPECT_TRUE(torch::equal(ours[i].grad(), expected))
          << how << ": parameter " << i << ", " << distance(ours[i].grad(), expected);
    }
  }

  static void expect_as_plain(Collective& all, const DataParallelOptions& options, bool hooked,
                              const char* how) {
    auto net = small_net(), plain = small_net();
    CountingCollective counting(all);
    DataParallel parallel(net.ptr(), counting, options);
    if (hooked) parallel.comm_hook(all_reduce_hook());
    for (int pass = 0; pass < 3; ++pass) {
      net->zero_grad();
      plain->zero_grad();
      loss_of(parallel.forward(net, samples_of(pass))).backward();
      loss_of(plain->forward(samples_of(pass))).backward();
      expect_gradients(net, plain, 1.0 / all.world_size(), how);
    }
    // Alone there is nothing to sum, but for a hook and a static graph, which do as with others.
    const bool sums = hooked || options.static_graph || all.world_size() > 1;
    EXPECT_EQ(counting.summed.empty(), !sums) << how << ": sums go through NCCL";
  }

  const std::vector<std::pair<const char*, DataParallelOptions>> ways_{
      {"as it is", {}},
      {"small buckets", {.bucket_cap_bytes = 2000, .first_bucket_bytes = 500}},
      {"copies", {.bucket_cap_bytes = 2000, .gradient_as_bucket_view = false}},
      {"one graph", {.static_graph = true}}};
};

TEST_F(DataParallelOnGpu, GradientsAreThoseOfPlainAutograd) {
  for (const auto& [how, options] : ways_) {
    expect_as_plain(ranks(), options, false, how);
    expect_as_plain(ranks(), options, true, how);
  }
}

TEST_F(DataParallelOnGpu, BesideARankWithoutSamplesTheyAreHalfOfIt) {
  BesideARankWithoutSamples two(ranks());
  for (const auto& [how, options] : ways_) {
    expect_as_plain(two, options, false, how);
    expect_as_plain(two, options, true, how);
  }
}

TEST_F(DataParallelOnGpu, AddsWhatPassesUnderNoSyncBring) {
  auto net = small_net(), plain = small_net();
  DataParallel parallel(net.ptr(), ranks());
  parallel.comm_hook(all_reduce_hook());
  {
    const auto no_sync = parallel.no_sync();
    loss_of(parallel.forward(net, samples_of(0))).backward();
  }
  loss_of(parallel.forward(net, samples_of(1))).backward();
  for (int pass = 0; pass < 2; ++pass) loss_of(plain->forward(samples_of(pass))).backward();
  expect_gradients(net, plain, 1, "accumulated");
}

TEST_F(DataParallelOnGpu, RefusesAModelThatWasLeftOnTheCpu) {
  auto net = small_net(at::kCPU);
  EXPECT_ANY_THROW(DataParallel(net.ptr(), ranks()));
}

using PrecisionOnGpu = OneGpu;

TEST_F(PrecisionOnGpu, AutocastComputesInBFloat16AndKeepsGradientsInFloat32) {
  auto net = small_net(), plain = small_net();
  DataParallel parallel(net.ptr(), ranks());
  const at::Tensor x = samples_of(1);
  at::Tensor loss;
  {
    const Autocast autocast(at::kCUDA);
    const at::Tensor output = parallel.forward(net, x);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    loss = loss_of(output);
  }
  loss.backward();
  loss_of(plain->forward(x)).backward();
  double most = 0;
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const at::Tensor ours = net->parameters()[i].grad();
    const at::Tensor theirs = plain->parameters()[i].grad();
    ASSERT_EQ(ours.scalar_type(), at::kFloat);
    const auto apart = ((ours - theirs).norm() / theirs.norm()).item<double>();
    EXPECT_LT(apart, 0.1) << i;
    most = std::max(most, apart);
  }
  EXPECT_GT(most, 1e-5) << "it was rounded to 16 bits";
}

TEST_F(PrecisionOnGpu, AnInfinityLeavesTheStepOutAndHalvesTheScale) {
  auto net = small_net();
  DataParallel parallel(net.ptr(), ranks());
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler({.initial_scale = 1024});
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(at::kCUDA, at::kHalf);
      const at::Tensor output = parallel.forward(net, samples_of(1));
      EXPECT_EQ(output.scalar_type(), at::kHalf);
      loss = loss_of(output) * factor;
    }
    scaler.scale(loss).backward();
    return scaler.step(parallel, optimizer);
  };
  const std::uint64_t begun = checksum(*net);
  EXPECT_TRUE(step(1));
  const std::uint64_t stepped = checksum(*net);
  EXPECT_NE(stepped, begun);
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_FALSE(step(1e38));
  EXPECT_EQ(checksum(*net), stepped);
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_TRUE(step(1));
  EXPECT_NE(checksum(*net), stepped);
  EXPECT_EQ(scaler.scale(), 512);
}

TEST_F(PrecisionOnGpu, TheScalerReadsOneNumberAndClippingNone) {
  auto net = small_net();
  DataParallel parallel(net.ptr(), ranks());
  SGD optimizer(net->parameters(), SGD::Options(0.1).momentum(0.9));
  GradScaler scaler({.initial_scale = 1024});
  for (int pass = 0; pass < 3; ++pass) {
    optimizer.zero_grad();
    scaler.scale(loss_of(parallel.forward(net, samples_of(pass)))).backward();
    const CountedOperations counted;
    EXPECT_TRUE(scaler.unscale(net->parameters()));
    EXPECT_TRUE(clip_grad_norm(net->parameters(), 0.01).is_cuda());
    EXPECT_TRUE(scaler.step(parallel, optimizer));
    EXPECT_EQ(counted.of("item"), 1);
    EXPECT_NEAR(clip_grad_norm(net->parameters(), 1e6).item<double>(), 0.01, 1e-5);
  }
}

TEST_F(PrecisionOnGpu, MastersKeepFloat32) {
  auto net = small_net();
  MasterWeights masters(*net, at::kBFloat16);
  DataParallel parallel(net.ptr(), ranks());
  parallel.comm_hook(float32_sum_hook());
  torch::optim::SGD optimizer(masters.parameters(), 0.1);
  const at::Tensor before = masters.parameters()[0].detach().clone();
  loss_of(parallel.forward(net, samples_of(1).to(at::kBFloat16))).backward();
  masters.step(parallel, optimizer);
  EXPECT_GT(distance(masters.parameters()[0], before), 0);
  for (std::size_t i = 0; i < masters.parameters().size(); ++i) {
    EXPECT_EQ(masters.parameters()[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(
        torch::equal(net->parameters()[i], masters.parameters()[i].detach().to(at::kBFloat16)));
  }
}

class CheckpointOnGpu : public OneGpu {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }

  static void step(DataParallel& parallel, torch::nn::Sequential& net, Adam& optimizer, int pass) {
    optimizer.zero_grad();
    loss_of(parallel.forward(net, samples_of(pass))).backward();
    parallel.step(optimizer);
  }

  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) / fmt::format("ddprun_gpu_{}.pt", ::getpid());
};

TEST_F(CheckpointOnGpu, ComesBackToTheGpuAndGoesOnWithTheSameBits) {
  auto net = small_net(), other = small_net();
  DataParallel parallel(net.ptr(), ranks());
  Adam optimizer(net->parameters(), Adam::Options(1e-2));
  for (int pass = 0; pass < 3; ++pass) step(parallel, net, optimizer, pass);
  save_checkpoint(file_, {*net, optimizer, ranks(), &parallel}, {.epoch = 3, .arch = "small"});

  DataParallel resumed(other.ptr(), ranks());
  Adam again(other->parameters(), Adam::Options(1e-2));
  EXPECT_NE(checksum(*other), checksum(*net));
  const auto loaded = load_checkpoint(file_, {*other, again, ranks(), &resumed});
  EXPECT_EQ(loaded.info.epoch, 3);
  EXPECT_TRUE(loaded.optimizer);
  EXPECT_EQ(checksum(*other), checksum(*net));
  ASSERT_EQ(again.state().size(), net->parameters().size());
  for (const auto& [parameter, any_state] : again.state())
    EXPECT_TRUE(static_cast<const torch::optim::AdamParamState&>(*any_state).exp_avg().is_cuda());
  for (const at::Tensor& parameter : other->parameters()) EXPECT_TRUE(parameter.is_cuda());
  step(parallel, net, optimizer, 3);
  step(resumed, other, again, 3);
  EXPECT_EQ(checksum(*other), checksum(*net));
}

TEST_F(CheckpointOnGpu, IsReadOnTheCpuToo) {
  auto net = small_net(), other = small_net(at::kCPU);
  DataParallel parallel(net.ptr(), ranks());
  Adam optimizer(net->parameters(), Adam::Options(1e-2));
  step(parallel, net, optimizer, 0);
  save_checkpoint(file_, {*net, optimizer, ranks(), &parallel}, {});
  const auto alone = make_alone_collective();
  Adam at_home(other->parameters(), Adam::Options(1e-2));
  EXPECT_TRUE(load_checkpoint(file_, {*other, at_home, *alone}).optimizer);
  EXPECT_EQ(checksum(*other), checksum(*net));
  EXPECT_TRUE(other->parameters()[0].is_cpu());
}

// Copies of a module in one process: one GPU may stand for two.
struct ClonedNetImpl : torch::nn::Cloneable<ClonedNetImpl> {
  ClonedNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(20, 30));
    last = register_module("last", torch::nn::Linear(30, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(ClonedNet);

class ReplicasOnGpu : public OneGpu {};

TEST_F(ReplicasOnGpu, GiveOutputAndGradientsOfOneCall) {
  for (const std::size_t copies : {1U, 2U, 3U}) {
    const auto made = [] {
      torch::manual_seed(7);
      ClonedNet net;
      net->to(at::kCUDA);
      return net;
    };
    auto plain = made(), split = made();
    const at::Tensor samples = samples_of(0);
    const at::Tensor expected = plain->forward(samples);
    const std::vector<at::Device> devices(copies, at::Device(at::kCUDA, 0));
    const at::Tensor output = data_parallel(split, samples, devices);
    EXPECT_LE(distance(output, expected), 1e-6);
    loss_of(expected).backward();
    loss_of(output).backward();
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_LE(distance(split->parameters()[i].grad(), plain->parameters()[i].grad()), 1e-6);
  }
}

}  // namespace
}  // namespace ddprun::worker
