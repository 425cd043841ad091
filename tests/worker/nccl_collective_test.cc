// The NCCL collective on one GPU: world of one, as the NCCL that torch 2.11 brings refuses two
// ranks on a device.
#include "worker/nccl_collective.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include <cstring>

#include "worker/data_parallel.h"
#include "worker/pipe_meeting.h"

namespace ddprun::worker {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    PipeMeeting meeting(1);
    auto joined = join_nccl({.timeout = std::chrono::seconds(60)}, meeting);
    ASSERT_TRUE(joined) << joined.error().message();
    collective_ = std::move(*joined);
  }
  std::unique_ptr<Collective> collective_;
};

TEST_F(Nccl, SumsInPlaceAfterWhatTheStreamHolds) {
  const auto memory = collective_->allocate(4 << 20);
  const auto tensor = torch::from_blob(memory.get(), {1 << 20}, torch::device(torch::kCUDA));
  for (int i = 1; i <= 20; ++i) {
    tensor.fill_(i);
    collective_->wait(collective_->launch_sum({memory.get(), 1 << 20, Dtype::kFloat32}));
    EXPECT_TRUE(torch::all(tensor == i).item<bool>());
  }
}

TEST_F(Nccl, GathersHostBytesAndBroadcasts) {
  const std::vector<std::byte> mine(1000, std::byte{7});
  EXPECT_EQ(collective_->all_gather(mine), std::vector<std::vector<std::byte>>{mine});
  EXPECT_EQ(collective_->all_gather({}).size(), 1U);
  double metrics[] = {1.5};
  collective_->sum(metrics);
  EXPECT_EQ(metrics[0], 1.5);
  const auto tensor = torch::ones({100}, torch::device(torch::kCUDA));
  collective_->broadcast({tensor.data_ptr(), 100, Dtype::kFloat32}, 0);
  EXPECT_EQ(tensor.sum().item<float>(), 100.0F);
  collective_->barrier();
}

TEST_F(Nccl, TrainsAsWithoutIt) {
  torch::nn::Linear plain(64, 64);
  torch::nn::Linear wrapped(64, 64);
  plain->to(torch::kCUDA);
  wrapped->to(torch::kCUDA);
  {
    const torch::NoGradGuard no_grad;
    wrapped->weight.copy_(plain->weight);
    wrapped->bias.copy_(plain->bias);
  }
  DataParallel parallel(wrapped.ptr(), *collective_);
  for (int i = 0; i < 3; ++i) {
    const auto samples = torch::randn({16, 64}, torch::device(torch::kCUDA));
    plain->zero_grad();
    wrapped->zero_grad();
    plain(samples).pow(2).sum().backward();
    parallel.forward(wrapped, samples).pow(2).sum().backward();
    EXPECT_TRUE(torch::equal(plain->weight.grad(), wrapped->weight.grad()));
  }
}

// The one case for machines without a GPU: asking for one is an error, not a crash.
TEST(NcclWithoutGpu, IsRefusedInOneLine) {
  if (why_no_gpu().empty()) GTEST_SKIP() << "this machine has a GPU";
  PipeMeeting meeting(1);
  const auto joined = join_nccl({.timeout = std::chrono::seconds(1)}, meeting);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().message(), why_no_gpu());
  EXPECT_EQ(joined.error().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
