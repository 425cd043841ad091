// Ranks that go and come while the processes of the others stay, in forked ranks.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kStepsEach = 3;  // in each world

// A model with running statistics, and an optimizer with momentum.
struct Trainer {
  Trainer() {
    torch::manual_seed(5);
    net = torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                                torch::nn::ReLU(), torch::nn::Linear(8, 3));
    optimizer.emplace(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::manual_seed(6);
    samples = torch::randn({400, 6});
  }

  // The ranks share out what they have not seen yet: `seen` samples are gone. Returns the new
  // number.
  std::int64_t train(DataParallel& parallel, const Collective& ranks, std::int64_t seen,
                     std::int64_t steps = kStepsEach) {
    for (std::int64_t step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      const auto batch = samples.narrow(0, seen + ranks.rank() * kBatch, kBatch);
      parallel.forward(net, batch).pow(2).mean().backward();
      parallel.step(*optimizer);
      seen += ranks.world_size() * kBatch;
    }
    return seen;
  }

  void save(const std::string& path) const {
    torch::save(net, path + ".net");
    torch::save(*optimizer, path + ".optimizer");
  }
  void load(const std::string& path) {
    torch::load(net, path + ".net");
    torch::load(*optimizer, path + ".optimizer");
  }

  torch::nn::Sequential net{nullptr};
  std::optional<torch::optim::SGD> optimizer;
  torch::Tensor samples;
};

void expect_same(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
}

// All ranks have rank 0's weights, to the bit.
void expect_equal_weights(const Trainer& trainer, Collective& ranks) {
  for (const at::Tensor& weights : trainer.net->parameters()) {
    const at::Tensor row = weights.detach().contiguous();
    const auto all = ranks.all_gather_bytes(std::as_bytes(
        std::span(row.const_data_ptr<float>(), static_cast<std::size_t>(row.numel()))));
    for (const auto& bytes : all) EXPECT_EQ(bytes, all[0]);
  }
}

std::unique_ptr<Collective> join(int rank, int ranks, Exchange& exchange) {
  return join_shm({.rank = rank, .ranks = ranks, .timeout = std::chrono::seconds(20)}, exchange)
      .value();
}

// Processes that are in no world yet, and know their number only.
void run_processes(int count, const std::function<void(int number)>& body) {
  int number = 0;
  const RanksOptions options{.ranks = count,
                             .join = [&number](int rank, const RanksOptions&,
                                               Exchange&) -> Result<std::unique_ptr<Collective>> {
                               number = rank;
                               return make_alone_collective();
                             }};
  run_ranks(options, [&](Collective& /*alone*/) {
    at::set_num_threads(1);
    body(number);
  });
}

// Running statistics are rank 0's; those of other ranks are their own until the next forward().
enum class Compare { kWeights, kWeightsAndBuffers };

// Checks a job that starts with that state: it ends with the other one.
void expect_fresh_job(int ranks, std::int64_t seen, const std::string& from, const std::string& to,
                      Compare compare) {
  run_torch_ranks(ranks, [&](Collective& collective) {
    Trainer trainer;
    trainer.load(from);
    DataParallel parallel(trainer.net.ptr(), collective);
    trainer.train(parallel, collective, seen);
    Trainer resized;
    resized.load(to);
    expect_same(trainer.net->parameters(), resized.net->parameters());
    if (collective.rank() == 0 && compare == Compare::kWeightsAndBuffers)
      expect_same(trainer.net->buffers(), resized.net->buffers());
  });
}

class Resize : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ddprun-resize-test-" + std::to_string(::getpid()));
};

constexpr std::int64_t kSeenByFour = 4 * kStepsEach * kBatch;
constexpr std::int64_t kSeenByTwo = kSeenByFour + 2 * kStepsEach * kBatch;

// Ranks 0 and 1 stay, 2 and 3 go, and the process with number 4 comes as rank 2.
TEST_F(Resize, FourThenTwoThenThreeRanks) {
  PipeExchange four(4);
  PipeExchange two(2);
  PipeExchange three(3);
  run_processes(5, [&](int number) {
    Trainer trainer;
    if (number == 4) {
      const auto last = join(2, 3, three);
      DataParallel parallel(trainer.net.ptr(), *last);
      share_optimizer_state(*trainer.optimizer, *last);
      trainer.train(parallel, *last, kSeenByTwo);
      return expect_equal_weights(trainer, *last);
    }
    auto first = join(number, 4, four);
    DataParallel parallel(trainer.net.ptr(), *first);
    EXPECT_EQ(trainer.train(parallel, *first, 0), kSeenByFour);
    if (number >= 2) return;
    auto second = join(number, 2, two);
    parallel.resize(*second);
    first.reset();
    if (number == 0) trainer.save(path("two"));
    EXPECT_EQ(trainer.train(parallel, *second, kSeenByFour), kSeenByTwo);
    auto third = join(number, 3, three);
    if (number == 0) trainer.save(path("three"));
    parallel.resize(*third);
    second.reset();
    share_optimizer_state(*trainer.optimizer, *third);
    trainer.train(parallel, *third, kSeenByTwo);
    expect_equal_weights(trainer, *third);
    if (number == 0) trainer.save(path("end"));
  });
  expect_fresh_job(2, kSeenByFour, path("two"), path("three"), Compare::kWeightsAndBuffers);
  expect_fresh_job(3, kSeenByTwo, path("three"), path("end"), Compare::kWeightsAndBuffers);
}

// When the victim dies, for all processes.
struct Stamp {
  std::atomic<std::int64_t> ns;
};

double milliseconds_since(const Stamp& stamp) {
  return static_cast<double>(Clock::now().time_since_epoch().count() - stamp.ns.load()) / 1e6;
}

TEST_F(Resize, GoesOnWithoutARankThatDiesInTheMiddleOfASum) {
  PipeExchange three(3);
  PipeExchange two(2);
  void* shared =
      ::mmap(nullptr, sizeof(Stamp), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& killed = *new (shared) Stamp{};
  const RanksOptions options{.ranks = 3};
  const auto statuses = run_ranks_to_end(options, [&](Collective& all) {
    at::set_num_threads(1);
    Trainer trainer;
    DataParallel parallel(trainer.net.ptr(), all);
    std::int64_t seen = trainer.train(parallel, all, 0);
    if (all.rank() == 0) trainer.save(path("before"));
    if (all.rank() == 1) {
      trainer.net->parameters()[0].register_hook([&](const torch::Tensor& /*gradient*/) {
        killed.ns = Clock::now().time_since_epoch().count();
        ::raise(SIGKILL);
      });
    }
    EXPECT_THROW(trainer.train(parallel, all, seen), CollectiveError);
    const double heard = milliseconds_since(killed);
    const auto survivors = join(all.rank() == 0 ? 0 : 1, 2, two);
    parallel.resize(*survivors);
    const double resized = milliseconds_since(killed);
    std::printf("rank %d heard of it after %.1f ms, and was in the new world after %.1f ms\n",
                all.rank(), heard, resized);
    EXPECT_LT(resized, 10'000.0);
    trainer.train(parallel, *survivors, seen);
    expect_equal_weights(trainer, *survivors);
    if (all.rank() == 0) trainer.save(path("after"));
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  for (const std::size_t rank : {0U, 2U}) EXPECT_EQ(statuses[rank], 0) << rank;
  // The statistics have seen the batch of the pass that was given up.
  expect_fresh_job(2, 3 * kStepsEach * kBatch, path("before"), path("after"), Compare::kWeights);
}

// The bytes of allocate() that are held, over several collectives.
struct LiveBytes {
  std::size_t now = 0;
  std::size_t most = 0;
};

class CountsLiveBytes final : public PassingCollective {
 public:
  CountsLiveBytes(Collective& inner, LiveBytes& live) : PassingCollective(inner), live_(live) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    if (bytes > room) throw CollectiveError("no room");
    live_.now += bytes;
    live_.most = std::max(live_.most, live_.now);
    auto memory = PassingCollective::allocate(bytes);
    std::byte* first = memory.get();
    return {first, [memory = std::move(memory), this, bytes](std::byte*) mutable {
              memory.reset();
              live_.now -= bytes;
            }};
  }

  std::size_t room = std::numeric_limits<std::size_t>::max();

 private:
  LiveBytes& live_;
};

TEST(ResizeMemory, IsNeverThatOfTwoSetsOfBuckets) {
  run_torch_ranks(2, [](Collective& ranks) {
    LiveBytes live;
    CountsLiveBytes before(ranks, live);
    CountsLiveBytes after(ranks, live);
    Trainer trainer;
    DataParallel parallel(trainer.net.ptr(), before);
    std::int64_t seen = trainer.train(parallel, before, 0);
    const std::size_t one_set = live.now;
    EXPECT_GT(one_set, 0U);
    live.most = live.now;
    parallel.resize(after);
    EXPECT_EQ(live.most, one_set);
    seen = trainer.train(parallel, after, seen);
    expect_equal_weights(trainer, ranks);
  });
}

TEST(ResizeMemory, AnObjectWithoutBucketsSaysSo) {
  run_torch_ranks(2, [](Collective& ranks) {
    LiveBytes live;
    CountsLiveBytes before(ranks, live);
    CountsLiveBytes full(ranks, live);
    full.room = 0;
    Trainer trainer;
    DataParallel parallel(trainer.net.ptr(), before);
    const std::int64_t seen = trainer.train(parallel, before, 0);
    EXPECT_THROW(parallel.resize(full), CollectiveError);
    EXPECT_THROW(trainer.train(parallel, before, seen), std::logic_error);
    EXPECT_THROW(parallel.reset(), std::logic_error);
    parallel.resize(before);
    trainer.train(parallel, before, seen);
    expect_equal_weights(trainer, ranks);
  });
}

}  // namespace
}  // namespace ddprun::worker
