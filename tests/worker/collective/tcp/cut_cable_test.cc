// A cable that is cut while gradients travel: no rank steps on what has come by then.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "tests/worker/collective/tcp/two_hosts.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

class CutCable : public TwoHosts {};

TEST_F(CutCable, NoStepIsMadeOnGradientsThatItHasStopped) {
  constexpr auto kDeadline = 2s;
  run_ranks(ranks(kDeadline), [this, kDeadline](Collective& both) {
    at::set_num_threads(1);
    constexpr std::int64_t kWidth = 1 << 20;
    Chain net(kWidth);
    DataParallel parallel(net.ptr(), both, {.bucket_cap_bytes = 1});
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    bool cuts = false;
    // Its gradient is the last one: the sums of the others are on their way.
    net->first.register_hook([&](const at::Tensor& gradient) {
      EXPECT_TRUE(!cuts || both.rank() != 0 || set_cable("down"));
      return gradient;
    });
    const auto backward = [&] {
      optimizer.zero_grad();
      parallel.forward(net, torch::ones({kWidth}) * 0.1).sum().backward();
    };
    for (int pass = 0; pass < 2; ++pass) {
      backward();
      parallel.step(optimizer);
    }
    const at::Tensor before = net->second.detach().clone();
    cuts = true;
    const auto begin = std::chrono::steady_clock::now();
    const auto message = message_of(backward);
    EXPECT_LE(std::chrono::steady_clock::now() - begin, kDeadline + kLate);
    EXPECT_NE(message.find(both.rank() == 0 ? "rank 1 on host1" : "rank 0 on host0"),
              std::string::npos)
        << message;
    const auto refusal = message_of([&] { parallel.step(optimizer); });
    EXPECT_NE(refusal.find("ended with an error: "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("of 3 buckets were not reduced"), std::string::npos) << refusal;
    EXPECT_TRUE(torch::equal(net->second, before));
  });
}

}  // namespace
}  // namespace ddprun::worker
