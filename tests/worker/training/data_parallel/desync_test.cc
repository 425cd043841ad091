// Ranks that do different things while they train, over shared memory and over TCP. With a job's
// timeout, ten minutes, all of them end at once. They say which rank did what.
#include <ddprun/data_parallel.h>
#include <ddprun/process.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

// At once, and not by the deadline of the sums; a machine that does much else may need longer.
constexpr std::chrono::seconds kDesyncLimit{10};

struct Transport {
  const char* name;
  JoinRank join;
};
std::ostream& operator<<(std::ostream& out, const Transport& transport) {
  return out << transport.name;
}

class Desync : public ::testing::TestWithParam<Transport> {
 protected:
  // All ranks come to the place where their ways part; from there it takes a moment. `words`: by
  // rank, of its error.
  void expect_desync_report(const std::function<std::function<void()>(Collective&)>& prepare,
                            const std::vector<std::vector<std::string>>& words) {
    const RanksOptions options{.ranks = static_cast<int>(words.size()),
                               .timeout = kCollectiveTimeout,
                               .join = GetParam().join};
    run_ranks(options, [&](Collective& collective) {
      at::set_num_threads(1);
      const auto part = prepare(collective);
      collective.barrier();
      const auto since = std::chrono::steady_clock::now();
      const auto message = message_of(part);
      const auto took = std::chrono::steady_clock::now() - since;
      EXPECT_LE(took, kDesyncLimit);
      for (const std::string& word : words.at(static_cast<std::size_t>(collective.rank())))
        EXPECT_NE(message.find(word), std::string::npos) << word << " not in: " << message;
      if (collective.rank() == 0)
        fmt::print("{}: {:.1f} ms: {}\n", GetParam().name,
                   std::chrono::duration<double, std::milli>(took).count(), message);
    });
  }
};

// A model in training: its buckets are rebuilt.
struct Training {
  Training(Collective& collective, std::int64_t width, bool init_sync)
      : net(width), parallel(net.ptr(), collective, {.init_sync = init_sync}) {
    step();
    step();
  }
  void step() {
    net->zero_grad();
    parallel.forward(net, torch::ones(net->first.sizes())).sum().backward();
    parallel.step(optimizer);
  }
  Chain net;
  DataParallel parallel;
  torch::optim::SGD optimizer{net->parameters(), 0.1};
};

TEST_P(Desync, ABarrierMeetsABackward) {
  const auto prepare = [](Collective& collective) -> std::function<void()> {
    auto training = std::make_shared<Training>(collective, 4, true);
    if (collective.rank() == 0) return [&collective, training] { collective.barrier(); };
    return [training] { training->step(); };
  };
  const std::vector<std::string> both{"rank 0", "rank 1", "barrier (operation ",
                                      "sum of bucket 0 (weights), 64 bytes (operation ",
                                      "they do different things"};
  expect_desync_report(prepare, {both, both});
}

TEST_P(Desync, OneStepMoreOnOneRank) {
  const auto prepare = [](Collective& collective) -> std::function<void()> {
    auto training = std::make_shared<Training>(collective, 4, true);
    return [&collective, training] {
      training->step();
      if (collective.rank() == 0) training->step();
      double loss[] = {1};
      collective.sum(loss);  // as a program reports its epoch
    };
  };
  const std::vector<std::string> both{"rank 0", "rank 1", "gather of 8 bytes (operation ",
                                      "they do different things"};
  expect_desync_report(prepare, {both, both});
}

// The other one has nothing more to do, and goes on to its end.
TEST_P(Desync, OneStepMoreWhereTheOtherRankIsDone) {
  const auto prepare = [](Collective& collective) -> std::function<void()> {
    auto training = std::make_shared<Training>(collective, 4, true);
    return [&collective, training] {
      training->step();
      if (collective.rank() == 0) training->step();
    };
  };
  expect_desync_report(
      prepare, {{"rank 0", "rank 1", "sum of bucket 0 (weights), 64 bytes (operation "}, {}});
}

TEST_P(Desync, BucketsOfAnotherModel) {
  for (const std::int64_t width : {5, 5000}) {  // in as much memory, and in more
    const auto prepare = [width](Collective& collective) -> std::function<void()> {
      return [&collective, width] {
        const Training training(collective, collective.rank() == 1 ? width : 4, false);
      };
    };
    const std::vector<std::string> both{"rank 0", "rank 1", "(operation ", " bytes",
                                        "train different models"};
    expect_desync_report(prepare, {both, both});
  }
}

INSTANTIATE_TEST_SUITE_P(Over, Desync,
                         ::testing::Values(Transport{"shm", join_by_shm},
                                           Transport{"tcp", join_by_tcp}));

}  // namespace
}  // namespace ddprun::worker
