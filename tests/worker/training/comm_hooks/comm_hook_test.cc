// Communication hooks in forked ranks over shared memory.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

torch::nn::Sequential made_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(40, 30), torch::nn::Tanh(),
                               torch::nn::Linear(30, 7));
}

at::Tensor samples_of(int rank) {
  torch::manual_seed(100 + rank);
  return torch::randn({5, 40});
}

// The gradients of the second pass, over rebuilt buckets, of one rank's samples or of all ranks.
std::vector<at::Tensor> gradients_with(const CommHook& hook, Collective& collective, int rank,
                                       bool view) {
  auto net = made_net();
  DataParallel parallel(net.ptr(), collective,
                        {.bucket_cap_bytes = 2000, .gradient_as_bucket_view = view});
  if (hook) parallel.comm_hook(hook);
  for (int pass = 0; pass < 2; ++pass) {
    net->zero_grad();
    parallel.forward(net, samples_of(rank)).pow(2).sum().backward();
    parallel.check_reduced();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters())
    gradients.push_back(parameter.grad().clone());
  return gradients;
}

TEST(CommHook, ThatSumsIsAsNone) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      const auto plain = gradients_with({}, collective, collective.rank(), view);
      const auto hooked = gradients_with(all_reduce_hook(), collective, collective.rank(), view);
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(torch::equal(plain[i], hooked[i])) << i;
    });
  }
}

// The bound of comm_hook.h, against gradients of single ranks, added in double.
void expect_within(double epsilon, const CommHook& hook, Collective& collective, bool view) {
  const auto alone = make_alone_collective();
  const int ranks = collective.world_size();
  std::vector<at::Tensor> truth;
  std::vector<at::Tensor> magnitude;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto local = gradients_with({}, *alone, rank, view);
    for (std::size_t i = 0; i < local.size(); ++i) {
      const auto share = local[i].to(torch::kDouble) / ranks;
      if (rank == 0) {
        truth.push_back(share);
        magnitude.push_back(share.abs());
      } else {
        truth[i] += share;
        magnitude[i] += share.abs();
      }
    }
  }
  const auto hooked = gradients_with(hook, collective, collective.rank(), view);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto error = (hooked[i].to(torch::kDouble) - truth[i]).abs();
    // Values below the least normal number of 16 bits have fewer bits.
    EXPECT_TRUE((error <= 2 * epsilon * magnitude[i] + 1e-7).all().item<bool>()) << i;
    EXPECT_GT(error.max().item<double>(), 0.0) << "nothing was rounded";
  }
}

TEST(CommHook, ThatCompressesRoundsOnce) {
  for (const bool view : {true, false}) {
    run_torch_ranks(3, [view](Collective& collective) {
      expect_within(std::ldexp(1.0, -11), compressed_hook(at::kHalf), collective, view);
      expect_within(std::ldexp(1.0, -8), compressed_hook(at::kBFloat16), collective, view);
      // Here the division is rounded, too.
      expect_within(std::ldexp(1.5, -8), compress_wrapper(all_reduce_hook(), at::kBFloat16),
                    collective, view);
    });
  }
}

TEST(CommHook, ThatCompressesSendsHalfTheBytes) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    gradients_with(compressed_hook(at::kBFloat16), collective, collective.rank(), true);
    std::size_t bytes = 0;
    for (const Flat& flat : collective.summed) bytes += flat.bytes();
    EXPECT_EQ(bytes, 2U * 2U * (40 * 30 + 30 + 30 * 7 + 7));
  });
}

TEST(CommHook, OfTheProgramSeesBucketsInOrderWithTheirParameters) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = made_net();
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 900});
    std::vector<std::string> seen;
    parallel.comm_hook([&](Bucket& bucket, Collective& ours) {
      std::string text = std::to_string(bucket.index()) + (bucket.is_last() ? " last:" : ":");
      const auto gradients = bucket.gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_EQ(gradients[i].sizes(), bucket.parameters()[i].sizes());
        text += " " + std::to_string(gradients[i].numel());
      }
      seen.push_back(text);
      // Twice the average, from a sum of its own and something to do afterwards.
      bucket.sum();
      bucket.then([&bucket, &ours] { bucket.buffer().mul_(2.0 / ours.world_size()); });
    });
    const auto plain = gradients_with({}, collective, collective.rank(), true);
    for (int pass = 0; pass < 2; ++pass) {
      net->zero_grad();
      parallel.forward(net, samples_of(collective.rank())).pow(2).sum().backward();
    }
    // Backward goes from the last layer to the first.
    EXPECT_EQ(seen,
              (std::vector<std::string>{"0 last: 1200 30 210 7", "0: 7 210 30", "1 last: 1200"}));
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), 2 * plain[i]));
  });
}

TEST(CommHook, MayBeSetOnceAndBeforeTheFirstForward) {
  run_torch_ranks(1, [](Collective& collective) {
    const char* words = "register_comm_hook or register_builtin_comm_hook can only be called once.";
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.comm_hook(all_reduce_hook());
    EXPECT_EQ(message_of([&] { parallel.comm_hook(all_reduce_hook()); }).find(words), 0U);
    DataParallel late(net.ptr(), collective);
    late.forward(net, torch::ones({4})).sum().backward();
    EXPECT_EQ(message_of([&] { late.comm_hook(all_reduce_hook()); }).find(words), 0U);
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DataParallel lookups(sparse.ptr(), collective);
    EXPECT_EQ(message_of([&] { lookups.comm_hook(all_reduce_hook()); }),
              "comm_hook: parameters with sparse gradients cannot have one");
    EXPECT_EQ(message_of([] { compressed_hook(at::kFloat); }),
              "a gradient cannot travel as Float: expected Half or BFloat16");
  });
}

TEST(CommHook, ThatThrowsEndsThePass) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.comm_hook([](Bucket&, Collective&) { throw std::runtime_error("no wire"); });
    EXPECT_EQ(message_of([&] { parallel.forward(net, torch::ones({4})).sum().backward(); }),
              "no wire");
    EXPECT_NE(message_of([&] { parallel.check_reduced(); }).find("ended with an error"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace ddprun::worker
