// From the environment to a collective: refusals, and ranks that meet over a real store.
#include <ddprun/process.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "tests/worker/startup/on_one_core.h"
#include "tests/worker/startup/served_store.h"
#include "tests/worker/startup/try_bootstrap.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/startup/init_method/rank_places.h"
#include "worker/startup/store_exchange.h"

namespace ddprun::worker {
namespace {

std::string refusal(const Variables& variables, const BootstrapOptions& options = {}) {
  set_environment(variables);
  const auto process = try_bootstrap(options);
  return process ? "" : process.error().message();
}

TEST(Bootstrap, MakesAWorldOfOneWithoutALauncher) {
  set_environment({});
  const auto process = try_bootstrap();
  ASSERT_TRUE(process) << process.error().message();
  EXPECT_FALSE(process->launched);
  EXPECT_EQ(process->world.world_size, 1);
  EXPECT_EQ(process->collective->name(), "alone");
}

TEST(Bootstrap, NeedsNoStoreForALaunchedWorldOfOne) {
  set_environment(worker(0, 1, 1));
  const auto process = try_bootstrap();
  ASSERT_TRUE(process) << process.error().message();
  EXPECT_TRUE(process->launched);
  EXPECT_EQ(process->collective->name(), "alone");
}

TEST(Bootstrap, TakesTheCpuInsteadWhereThereIsNoGpu) {
  set_environment(worker(0, 1, 1));
  const auto process = try_bootstrap({.device = Device::kCuda, .cpu_instead = true});
  ASSERT_TRUE(process) << process.error().message();
  EXPECT_EQ(process->collective->name(), gpu_count() > 0 ? "nccl" : "alone");
  if (gpu_count() > 0) return;
  EXPECT_EQ(refusal(worker(0, 1, 1), {.device = Device::kCuda}), why_no_gpu());
}

TEST(Bootstrap, RefusesABrokenEnvironment) {
  auto variables = worker(0, 2, 1);
  variables["RANK"] = "zero";
  EXPECT_NE(refusal(variables).find("RANK=zero"), std::string::npos);
}

TEST(Bootstrap, RefusesAJobWithoutALaunchersStore) {
  auto variables = worker(0, 2, 1);
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  const auto message = refusal(variables);
  EXPECT_NE(message.find("ddprun, torchrun, mpirun or srun"), std::string::npos) << message;
}

TEST(Bootstrap, SaysWhereThereIsNoStore) {
  // Port 1 of the loopback: nothing listens there.
  const auto message = refusal(worker(0, 2, 1), {.timeout = std::chrono::seconds(1)});
  EXPECT_NE(message.find("127.0.0.1:1"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

// Runs `body` as each of `ranks` in `world`, in processes; it answers a failure or nothing.
void run_workers(const ServedStore& store, const std::vector<int>& ranks, int world,
                 const std::function<void(int rank)>& body) {
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (const int rank : ranks) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kRankLifeSeconds);
      set_environment(worker(rank, world, store.port()));
      body(rank);
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Bootstrap, BringsTheRanksOfAHostTogetherOverTheStore) {
  const ServedStore store;
  run_workers(store, {0, 1, 2}, 3, [](int rank) {
    const auto process = try_bootstrap();
    ASSERT_TRUE(process) << process.error().message();
    EXPECT_EQ(process->collective->name(), "shm");
    EXPECT_EQ(process->collective->rank(), rank);
    double metrics[] = {static_cast<double>(rank)};
    process->collective->sum(metrics);
    EXPECT_EQ(metrics[0], 3.0);
  });
}

TEST(Bootstrap, AllRanksHearWhyTheyHaveNoGpu) {
  if (gpu_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const ServedStore store;
  run_workers(store, {0, 1}, 2, [](int rank) {
    const auto process = try_bootstrap({.device = Device::kCuda, .cpu_instead = true});
    ASSERT_TRUE(process) << process.error().message();
    EXPECT_EQ(process->collective->name(), "shm");
    EXPECT_EQ(process->collective->rank(), rank);
  });
  run_workers(store, {0, 1}, 2, [](int /*rank*/) {
    const auto process = try_bootstrap({.device = Device::kCuda});
    ASSERT_FALSE(process);
    EXPECT_EQ(process.error().message(), "rank 0: " + why_no_gpu());
  });
}

// Checks the policy of launched ranks, which share a core or do not.
void expect_policy(const std::vector<int>& ranks, int policy, bool long_time_slices) {
  const ServedStore store;
  run_workers(store, ranks, static_cast<int>(ranks.size()), [&](int /*rank*/) {
    const auto process = try_bootstrap({.long_time_slices = long_time_slices});
    ASSERT_TRUE(process) << process.error().message();
    EXPECT_EQ(::sched_getscheduler(0), policy) << ranks.size() << " ranks";
  });
}

TEST(Bootstrap, GivesLongTimeSlicesToRanksThatShareACore) {
  if (!no_time_slices().empty()) GTEST_SKIP() << no_time_slices();
  const OnOneCore core;
  expect_policy({0, 1}, SCHED_BATCH, true);
  expect_policy({0, 1}, SCHED_OTHER, false);
  expect_policy({0}, SCHED_OTHER, true);
}

// Sets what a launcher says of a rank on one of several hosts; `hosts` has the ranks of each.
void place_on(const std::vector<int>& hosts, int rank) {
  int node = 0;
  while (rank >= hosts[static_cast<std::size_t>(node)])
    rank -= hosts[static_cast<std::size_t>(node++)];
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(hosts[static_cast<std::size_t>(node)]).c_str(), 1);
  ::setenv("GROUP_RANK", std::to_string(node).c_str(), 1);
  ::setenv("GROUP_WORLD_SIZE", std::to_string(hosts.size()).c_str(), 1);
}

// The sums over all ranks, and what connects them.
void expect_hosts(const std::vector<int>& hosts, std::string_view name) {
  const ServedStore store;
  const int world = std::accumulate(hosts.begin(), hosts.end(), 0);
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  run_workers(store, ranks, world, [&](int rank) {
    place_on(hosts, rank);
    const auto process = try_bootstrap();
    ASSERT_TRUE(process) << process.error().message();
    EXPECT_EQ(process->collective->name(), name);
    EXPECT_EQ(process->collective->rank(), rank);
    const auto memory = process->collective->allocate(4);
    auto* number = reinterpret_cast<std::int32_t*>(memory.get());
    *number = rank;
    process->collective->wait(process->collective->launch_sum({number, 1, Dtype::kInt32}));
    EXPECT_EQ(*number, world * (world - 1) / 2);
  });
}

TEST(Bootstrap, ConnectsHosts) {
  expect_hosts({1, 1}, "tcp");
  expect_hosts({2, 2}, "hierarchical");
  expect_hosts({2, 2, 2}, "hierarchical");
}

TEST(Bootstrap, ConnectsHostsWithUnlikeNumbersOfRanks) { expect_hosts({1, 2}, "tcp"); }

TEST(Bootstrap, KnowsHostsThatAreAlike) {
  EXPECT_TRUE(is_uniform({{0, 0, 2}, {0, 1, 2}, {1, 0, 2}, {1, 1, 2}}));
  EXPECT_FALSE(is_uniform({{0, 0, 1}, {1, 0, 2}, {1, 1, 2}}));
  EXPECT_FALSE(is_uniform({{1, 0, 2}, {1, 1, 2}, {0, 0, 2}, {0, 1, 2}}));
  EXPECT_FALSE(is_uniform({{0, 0, 2}, {0, 1, 2}, {1, 0, 2}}));
}

TEST(Bootstrap, PlacesRanksWhereTheyAre) {
  const HostId one{.name = "n", .id = "1"};
  const HostId other{.name = "n", .id = "2"};
  const auto places = place_ranks({one, other, one, other, other});
  const std::vector<std::vector<int>> expected{
      {0, 0, 2}, {1, 0, 3}, {0, 1, 2}, {1, 1, 3}, {1, 2, 3}};
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    const RankPlace& place = places.at(rank);
    EXPECT_EQ((std::vector{place.node_rank, place.local_rank, place.local_ranks}), expected[rank])
        << "rank " << rank;
  }
  EXPECT_TRUE(is_uniform(place_ranks({one, one, other, other})));
  EXPECT_FALSE(is_uniform(place_ranks({one, other, one, other})));
}

// A store that outlives an attempt still holds its keys.
TEST(Bootstrap, MeetsAgainInTheNextAttemptOfTheSameStore) {
  const ServedStore store;
  for (const char* attempt : {"0", "1", "2"}) {
    run_workers(store, {0, 1}, 2, [attempt](int /*rank*/) {
      ::setenv("TORCHELASTIC_RESTART_COUNT", attempt, 1);
      const auto process = try_bootstrap();
      ASSERT_TRUE(process) << process.error().message();
      process->collective->barrier();
    });
  }
}

// As after a change of the membership under torchrun: the store and the restart count are the old
// ones.
void expect_worlds_meet(const std::vector<std::vector<int>>& worlds, std::string_view name) {
  const ServedStore store;
  for (const std::vector<int>& hosts : worlds) {
    const int world = std::accumulate(hosts.begin(), hosts.end(), 0);
    std::vector<int> ranks(static_cast<std::size_t>(world));
    std::iota(ranks.begin(), ranks.end(), 0);
    run_workers(store, ranks, world, [&](int rank) {
      place_on(hosts, rank);
      const auto process = try_bootstrap({.timeout = std::chrono::seconds(20)});
      ASSERT_TRUE(process) << world << " ranks: " << process.error().message();
      EXPECT_EQ(process->collective->name(), name);
      double metrics[] = {1};
      process->collective->sum(metrics);
      EXPECT_EQ(metrics[0], world);
    });
  }
}

TEST(Bootstrap, MeetsAfterAChangeOfTheMembership) {
  expect_worlds_meet({{2}, {3}, {2}, {2}}, "shm");
  expect_worlds_meet({{1, 1}, {1, 1, 1}, {1, 1}}, "tcp");
  expect_worlds_meet({{2, 2}, {2, 2, 2}, {2, 2}}, "hierarchical");
}

// Some of the ranks come, and end; then all of them come. The keys of the first ones must not
// count.
TEST(Bootstrap, MeetsAfterAStartThatWasNotFinished) {
  for (const auto& first : {std::vector<int>{0}, {1}, {0, 2}, {1, 2}}) {
    const ServedStore store;
    run_workers(store, first, 3, [](int /*rank*/) {
      EXPECT_FALSE(try_bootstrap({.timeout = std::chrono::seconds(1)}));
    });
    run_workers(store, {0, 1, 2}, 3, [](int /*rank*/) {
      const auto process = try_bootstrap({.timeout = std::chrono::seconds(20)});
      ASSERT_TRUE(process) << process.error().message();
      process->collective->barrier();
    });
  }
}

// The exchange over which NCCL meets: one announces, the others hear the text of this exchange.
TEST(StoreExchange, TellsNothingOfAnEarlierExchange) {
  const ServedStore store;
  int number = 0;
  for (const int world : {2, 3, 2, 2}) {
    std::vector<int> ranks(static_cast<std::size_t>(world));
    std::iota(ranks.begin(), ranks.end(), 0);
    const std::string text = fmt::format("exchange {}", ++number);
    run_workers(store, ranks, world, [&](int rank) {
      const WorkerEnv env{.master_addr = "127.0.0.1", .master_port = store.port()};
      auto exchange = meet_over_store(env, std::chrono::seconds(20),
                                      {.name = "nccl", .rank = rank, .ranks = world});
      ASSERT_TRUE(exchange) << exchange.error().message();
      const auto here = (*exchange)->arrive();
      ASSERT_TRUE(here) << here.error().message();
      if (rank == 0) {
        EXPECT_TRUE((*exchange)->announce(text));
      } else {
        EXPECT_EQ((*exchange)->hear().value(), text);
      }
      const auto all = (*exchange)->gather(rank, text);
      EXPECT_EQ(all.value(), std::vector<std::string>(static_cast<std::size_t>(world), text));
    });
  }
}

// A process of an earlier membership that is not dead yet must not go on as rank 0.
TEST(StoreExchange, SendsAnEarlierRank0Away) {
  const ServedStore store;
  const WorkerEnv env{.master_addr = "127.0.0.1", .master_port = store.port()};
  const auto exchange_of = [&](int rank) {
    return meet_over_store(env, std::chrono::seconds(20), {.name = "shm", .rank = rank, .ranks = 2})
        .value();
  };
  std::promise<Result<void>> first;
  std::thread earlier([&] { first.set_value(exchange_of(0)->arrive()); });
  auto client = store::Client::connect("127.0.0.1", store.port(), std::chrono::seconds(20)).value();
  ASSERT_TRUE(client.wait("/ddprun/shm/0/2/rounds", std::chrono::seconds(20)));
  std::thread later([&] { EXPECT_TRUE(exchange_of(0)->arrive()); });
  ASSERT_TRUE(client.wait("/ddprun/shm/0/2/1/next", std::chrono::seconds(20)));
  // As a rank that took its place in the first round before that was over.
  ASSERT_TRUE(client.set("/ddprun/shm/0/2/1/rank/1", "a word"));
  EXPECT_TRUE(exchange_of(1)->arrive());
  const auto said = first.get_future().get();
  earlier.join();
  later.join();
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(said.error().message().find("another rank 0"), std::string::npos);
}

TEST(Bootstrap, NamesTheRankThatDoesNotCome) {
  const ServedStore store;
  run_workers(store, {0, 2}, 3, [](int /*rank*/) {
    // Long enough for the other two to come.
    const auto process = try_bootstrap({.timeout = std::chrono::seconds(5)});
    ASSERT_FALSE(process);
    EXPECT_NE(process.error().message().find("rank 1 of 3 did not come"), std::string::npos)
        << process.error().message();
  });
}

}  // namespace
}  // namespace ddprun::worker
