// The shared-memory collective between forked processes: what it computes, and what it says when a
// peer fails.
#include "worker/collective/shm/shm_collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/kernels/ring_order.h"
#include "worker/collective/shm/shm_layout.h"
#include "worker/collective/shm/shm_peers.h"

namespace ddprun::worker {
namespace {

float element(int rank, std::size_t i) {
  return static_cast<float>((i * 2654435761U + static_cast<std::size_t>(rank) * 40503U) %
                            100'003U) /
         7.0F;
}

// Returns the sum of `count` elements of element(rank, i) in ring order.
std::vector<float> expected_sum(int ranks, std::size_t count) {
  const auto world = static_cast<std::size_t>(ranks);
  std::vector<float> sums(count);
  for (std::size_t c = 0; c < world; ++c) {
    const Chunk chunk = ring_chunk(count * sizeof(float), sizeof(float), world, c);
    for (std::size_t i = chunk.begin / sizeof(float); i < chunk.end / sizeof(float); ++i) {
      sums[i] = element(static_cast<int>((c + world - 1) % world), i);
      for (std::size_t k = 2; k <= world; ++k) {
        sums[i] = element(static_cast<int>((c + world - k) % world), i) + sums[i];
      }
    }
  }
  return sums;
}

void fill(float* data, int rank, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] = element(rank, i);
}

// Files of shared memory that this process has open.
std::vector<std::string> files_left() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the directory's own
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("/memfd:ddprun")) names.push_back(target);
  }
  return names;
}

// The most time for an event that must come at once; a rank that hangs is killed by SIGALRM.
constexpr unsigned kSoonSeconds = 10;

constexpr std::size_t kLargeSum = 3'000'001;

class ShmRanks : public ::testing::TestWithParam<int> {};

TEST_P(ShmRanks, SumInRingOrder) {
  const int ranks = GetParam();
  run_ranks(ranks, [ranks](Collective& collective) {
    for (const std::size_t count : {1UL, 5UL, 1000UL, 4097UL, 300'000UL, kLargeSum}) {
      const auto memory = collective.allocate(count * sizeof(float));
      auto* data = reinterpret_cast<float*>(memory.get());
      fill(data, collective.rank(), count);
      collective.wait(collective.launch_sum({data, count, Dtype::kFloat32}));
      const auto expected = expected_sum(ranks, count);
      EXPECT_EQ(std::memcmp(data, expected.data(), count * sizeof(float)), 0) << count;
    }
  });
}

TEST_P(ShmRanks, KeepManySumsInFlight) {
  const int ranks = GetParam();
  run_ranks(ranks, [](Collective& collective) {
    constexpr std::size_t kSums = 2 * kSumSlots + 7;  // more than there are slots
    constexpr std::size_t kCount = 1024;
    const auto memory = collective.allocate(kSums * kCount * sizeof(std::int64_t));
    auto* data = reinterpret_cast<std::int64_t*>(memory.get());
    Ticket last = 0;
    for (std::size_t sum = 0; sum < kSums; ++sum) {
      for (std::size_t i = 0; i < kCount; ++i) {
        data[sum * kCount + i] = static_cast<std::int64_t>(sum * i) + collective.rank();
      }
      last = collective.launch_sum({data + sum * kCount, kCount, Dtype::kInt64});
      if (sum % 3 == 0) collective.progress();
    }
    collective.wait(last);
    const std::int64_t world = collective.world_size();
    for (std::size_t sum = 0; sum < kSums; ++sum) {
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(data[sum * kCount + i],
                  world * static_cast<std::int64_t>(sum * i) + world * (world - 1) / 2);
      }
    }
  });
}

TEST_P(ShmRanks, BroadcastAnyLengthFromAnyRoot) {
  const int ranks = GetParam();
  run_ranks(ranks, [ranks](Collective& collective) {
    for (const std::size_t bytes :
         {0UL, 1UL, kStagingBytes, kStagingBytes + 1, 5 * kStagingBytes + 3}) {
      std::vector<std::uint8_t> sent(bytes);
      for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::uint8_t>(i * 31 + 7);
      for (int root = 0; root < ranks; ++root) {
        auto data = collective.rank() == root ? sent : std::vector<std::uint8_t>(bytes);
        collective.broadcast({data.data(), bytes, Dtype::kUInt8}, root);
        ASSERT_TRUE(data == sent) << bytes << " from " << root;
      }
    }
  });
}

TEST_P(ShmRanks, GatherBlobsOfDifferentLengths) {
  run_ranks(GetParam(), [](Collective& collective) {
    for (std::size_t round = 0; round < 50; ++round) {
      const auto length = static_cast<std::size_t>(collective.rank()) * round * 7;
      const std::vector<std::byte> mine(length, std::byte(collective.rank() + 1));
      const auto all = collective.all_gather_bytes(mine);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(collective.world_size()));
      for (std::size_t peer = 0; peer < all.size(); ++peer) {
        ASSERT_EQ(all[peer], std::vector<std::byte>(peer * round * 7, std::byte(peer + 1)));
      }
    }
  });
}

TEST_P(ShmRanks, CarryRootsBytesBeyondOneGather) {
  run_ranks(GetParam(), [](Collective& collective) {
    std::vector<std::byte> mine(3 * Collective::kGatherBytesMax + 11, std::byte{42});
    if (collective.rank() != 1) mine.clear();
    EXPECT_EQ(collective.from_root(mine, 1),
              std::vector<std::byte>(3 * Collective::kGatherBytesMax + 11, std::byte{42}));
  });
}

TEST_P(ShmRanks, AddMetrics) {
  run_ranks(GetParam(), [](Collective& collective) {
    double metrics[] = {0.1 * collective.rank(), 1.0};
    collective.sum(metrics);
    const int world = collective.world_size();
    EXPECT_DOUBLE_EQ(metrics[0], 0.1 * world * (world - 1) / 2);
    EXPECT_EQ(metrics[1], world);
  });
}

// Sizes and the mixture of operations are drawn from one seed, so equal on all ranks.
TEST_P(ShmRanks, SurviveARandomMixtureOfOperations) {
  const int ranks = GetParam();
  run_ranks(ranks, [](Collective& collective) {
    constexpr std::size_t kMost = 20'000;
    const auto memory = collective.allocate(kMost * sizeof(std::int32_t));
    auto* data = reinterpret_cast<std::int32_t*>(memory.get());
    std::mt19937 random(11);
    const int world = collective.world_size();
    for (int round = 0; round < 2000; ++round) {
      const std::size_t count = random() % kMost + 1;
      const auto kind = random() % 8;
      if (kind == 0) collective.barrier();
      if (kind == 1) collective.broadcast({&round, 1, Dtype::kInt32}, round % world);
      std::fill_n(data, count, round + collective.rank());
      collective.wait(collective.launch_sum({data, count, Dtype::kInt32}));
      const auto all_are = [&](std::int32_t sum) {
        return std::all_of(data, data + count, [sum](std::int32_t value) { return value == sum; });
      };
      ASSERT_TRUE(all_are(world * round + world * (world - 1) / 2)) << "round " << round;
    }
  });
}

TEST_P(ShmRanks, LeaveNothingInSharedMemory) {
  run_ranks(GetParam(), [](Collective& collective) {
    const auto memory = collective.allocate(std::size_t{1} << 20);
    collective.barrier();
    EXPECT_EQ(files_left(), std::vector<std::string>{});
  });
}

TEST_P(ShmRanks, HaveSeveralRegionsOfMemoryAtOnce) {
  run_ranks(GetParam(), [](Collective& collective) {
    auto first = collective.allocate(sizeof(std::int32_t));
    const auto second = collective.allocate(sizeof(std::int32_t));
    std::int32_t value = 5;
    std::memcpy(first.get(), &value, sizeof value);
    std::memcpy(second.get(), &value, sizeof value);
    const Ticket sum = collective.launch_sum({first.get(), 1, Dtype::kInt32});
    collective.wait(collective.launch_sum({second.get(), 1, Dtype::kInt32}));
    collective.wait(sum);
    first.reset();  // unmapped here; the other stays
    std::memcpy(&value, second.get(), sizeof value);
    EXPECT_EQ(value, 5 * collective.world_size());
  });
}

// Elements that are added for another rank must not lie in memory that this one has unmapped.
TEST_P(ShmRanks, CompleteASumWhoseMemoryTheCallerLetGo) {
  run_ranks(GetParam(), [](Collective& collective) {
    constexpr std::size_t kCount = 100'000;
    auto memory = collective.allocate(kCount * sizeof(std::int32_t));
    auto* data = reinterpret_cast<std::int32_t*>(memory.get());
    std::fill_n(data, kCount, collective.rank() + 1);
    const Ticket sum = collective.launch_sum({data, kCount, Dtype::kInt32});
    const bool lets_go = collective.rank() % 2 == 0;
    const std::weak_ptr<std::byte> seen = memory;
    if (lets_go) memory.reset();
    collective.wait(sum);
    EXPECT_EQ(seen.expired(), lets_go) << "held no longer than needed";
    const int world = collective.world_size();
    if (!lets_go) {
      const std::vector<std::int32_t> expected(kCount, world * (world + 1) / 2);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data));
    }
  });
}

// 2 and 3: unrolled; 4: may be more than cores, so no spin; 7: tiled kernel.
INSTANTIATE_TEST_SUITE_P(Ranks, ShmRanks, ::testing::Values(2, 3, 4, 7));

TEST(ShmFailures, ToldByTheSurvivorsWhenAPeerIsKilledInASum) {
  const auto statuses = run_ranks_to_end({.ranks = 3}, [](Collective& collective) {
    const auto memory = collective.allocate(4096);
    if (collective.rank() == 1) ::raise(SIGKILL);
    const std::string message = message_of([&] {
      collective.wait(collective.launch_sum({memory.get(), 1024, Dtype::kFloat32}));
    });
    EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
    EXPECT_NE(message.find("has ended"), std::string::npos) << message;
  });
  EXPECT_TRUE(WIFEXITED(statuses[0]) && WEXITSTATUS(statuses[0]) == 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL);
  EXPECT_TRUE(WIFEXITED(statuses[2]) && WEXITSTATUS(statuses[2]) == 0);
}

// Signals far more often than a wait looks for dead peers. Not by alarm(): that ends a hung rank.
void interrupt_this_process_every_5_ms() {
  static volatile std::sig_atomic_t interruptions = 0;
  struct sigaction action {};
  action.sa_handler = [](int /*signal*/) { interruptions = interruptions + 1; };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  struct sigevent event {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGUSR1;
  timer_t timer{};
  ASSERT_EQ(::timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const itimerspec often{.it_interval = {.tv_sec = 0, .tv_nsec = 5'000'000},
                         .it_value = {.tv_sec = 0, .tv_nsec = 5'000'000}};
  ASSERT_EQ(::timer_settime(timer, 0, &often, nullptr), 0);
}

TEST(ShmFailures, NoticeADeadPeerAlsoUnderARainOfSignals) {
  const auto statuses = run_ranks_to_end({.ranks = 2}, [](Collective& collective) {
    ::alarm(kSoonSeconds);
    if (collective.rank() == 1) ::raise(SIGKILL);
    interrupt_this_process_every_5_ms();
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_NE(message.find("has ended"), std::string::npos) << message;
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

TEST(ShmFailures, KeepADeadlineAlsoUnderARainOfSignals) {
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const RanksOptions options{.ranks = 2, .timeout = std::chrono::milliseconds(2000)};
  const auto statuses = run_ranks_to_end(options, [&gate](Collective& collective) {
    ::alarm(kSoonSeconds);
    char byte = 0;
    if (collective.rank() == 1) {  // alive until rank 0 has given up
      EXPECT_EQ(::read(gate[0], &byte, 1), 1);
      return;
    }
    interrupt_this_process_every_5_ms();
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_NE(message.find("did not come within 2 s"), std::string::npos) << message;
    EXPECT_EQ(::write(gate[1], &byte, 1), 1);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(ShmFailures, DoNotBlameAPeerThatEndedAfterItsPartWasDone) {
  run_ranks(3, [](Collective& collective) {
    const auto memory = collective.allocate(4096);
    auto* data = reinterpret_cast<float*>(memory.get());
    data[0] = 1;
    collective.wait(collective.launch_sum({data, 1024, Dtype::kFloat32}));
    EXPECT_EQ(data[0], 3.0F);  // and whoever is first ends at once
  });
}

TEST(ShmFailures, EndAWaitAtItsDeadlineAndNameTheRankThatDidNotCome) {
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const RanksOptions options{.ranks = 2, .timeout = std::chrono::milliseconds(2000)};
  const auto statuses = run_ranks_to_end(options, [&gate](Collective& collective) {
    char byte = 0;
    if (collective.rank() == 1) {  // alive, but does not come before rank 0 has given up
      EXPECT_EQ(::read(gate[0], &byte, 1), 1);
      const auto message = message_of([&] {
        collective.barrier();
        collective.barrier();
      });
      EXPECT_NE(message.find("rank 1 did not come within 2 s"), std::string::npos) << message;
      return;
    }
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_NE(message.find("rank 1 did not come within 2 s"), std::string::npos) << message;
    EXPECT_EQ(::write(gate[1], &byte, 1), 1);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(ShmFailures, RefuseSumsOfDifferentThings) {
  const auto statuses = run_ranks_to_end({.ranks = 2}, [](Collective& collective) {
    const auto memory = collective.allocate(4096);
    const std::size_t count = collective.rank() == 0 ? 100 : 99;
    const auto message = message_of([&] {
      collective.wait(collective.launch_sum({memory.get(), count, Dtype::kFloat32}));
    });
    EXPECT_NE(message.find(" 100 "), std::string::npos) << message;
    EXPECT_NE(message.find(" 99 "), std::string::npos) << message;
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(ShmFailures, RefuseDifferentOperations) {
  const auto statuses = run_ranks_to_end({.ranks = 2}, [](Collective& collective) {
    int value = 0;
    const auto message = message_of([&] {
      if (collective.rank() == 0)
        collective.barrier();
      else
        collective.broadcast({&value, 1, Dtype::kInt32}, 0);
    });
    EXPECT_NE(message.find("does barrier (operation "), std::string::npos) << message;
    EXPECT_NE(message.find("does broadcast of 4 bytes (operation "), std::string::npos) << message;
    EXPECT_NE(message.find("do different things"), std::string::npos) << message;
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// With a deadline that does not pass in the life of a test's rank.
void expect_a_desync_report(int ranks, const RankBody& operations,
                            const std::vector<std::string>& words) {
  const RanksOptions options{.ranks = ranks, .timeout = std::chrono::minutes(10)};
  const auto statuses = run_ranks_to_end(options, [&](Collective& collective) {
    ::alarm(kSoonSeconds);
    const auto message = message_of([&] { operations(collective); });
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " not in: " << message;
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(ShmFailures, EndRanksThatWaitForEachOther) {
  expect_a_desync_report(
      2,
      [](Collective& collective) {
        const auto memory = collective.allocate(4096);
        if (collective.rank() == 0)
          collective.barrier();
        else
          collective.wait(collective.launch_sum({memory.get(), 1024, Dtype::kFloat32}));
      },
      {"rank 0 waits in barrier (operation ", " for rank 1, ",
       "rank 1 waits in sum of 4096 bytes (operation ", ": they do different things"});
}

TEST(ShmFailures, EndThreeRanksOfWhichOneDoesAnotherThing) {
  expect_a_desync_report(
      3,
      [](Collective& collective) {
        const auto memory = collective.allocate(4096);
        if (collective.rank() == 2) collective.barrier();
        collective.wait(collective.launch_sum({memory.get(), 1024, Dtype::kFloat32}));
        collective.barrier();
      },
      {"rank 2 waits in barrier (operation ", "waits in sum of 4096 bytes (operation ",
       ": they do different things"});
}

TEST(ShmFailures, NameTheLastOperationOfARankThatDoesNotCome) {
  int gate[2];
  int done[2];
  ASSERT_EQ(::pipe(gate), 0);
  ASSERT_EQ(::pipe(done), 0);
  const RanksOptions options{.ranks = 2, .timeout = std::chrono::milliseconds(2000)};
  const auto statuses = run_ranks_to_end(options, [&](Collective& collective) {
    char byte = 0;
    int value = 0;
    collective.broadcast({&value, 1, Dtype::kInt32}, 0);
    if (collective.rank() == 1) {  // alive until rank 0 has given up
      EXPECT_EQ(::write(done[1], &byte, 1), 1);
      EXPECT_EQ(::read(gate[0], &byte, 1), 1);
      return;
    }
    EXPECT_EQ(::read(done[0], &byte, 1), 1);
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_NE(message.find("; its last operation was broadcast of 4 bytes (operation "),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("), done "), std::string::npos) << message;
    EXPECT_EQ(::write(gate[1], &byte, 1), 1);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// Many looks of the two that wait find no reason to end.
TEST(ShmFailures, LeaveRanksAloneThatWaitForASlowOne) {
  run_ranks(3, [](Collective& collective) {
    const auto memory = collective.allocate(4096);
    for (int round = 0; round < 2; ++round) {
      if (collective.rank() == round) std::this_thread::sleep_for(50 * kWaitSlice);
      collective.wait(collective.launch_sum({memory.get(), 1024, Dtype::kFloat32}));
      collective.barrier();
    }
  });
}

TEST(ShmFailures, RefuseMemoryThatIsNotTheirs) {
  run_ranks(2, [](Collective& collective) {
    float value = 0;
    EXPECT_THROW(collective.launch_sum({&value, 1, Dtype::kFloat32}), CollectiveError);
    const auto memory = collective.allocate(4096);
    EXPECT_THROW(collective.launch_sum({memory.get(), 4096, Dtype::kFloat32}), CollectiveError);
  });
}

TEST(ShmFailures, SayOnAllRanksThatSharedMemoryIsTooSmallAndLogItOnce) {
  ::testing::internal::CaptureStderr();
  run_ranks(3, [](Collective& collective) {
    EXPECT_THROW(collective.allocate(std::size_t{1} << 44), LoggedError);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  EXPECT_NE(log.find("50331648 MiB of shared memory needed for sums"), std::string::npos) << log;
}

TEST(ShmFailures, StayWholeWhenSharedMemoryIsTooSmall) {
  run_ranks(2, [](Collective& collective) {
    const auto message = message_of([&] { collective.allocate(std::size_t{1} << 44); });
    EXPECT_NE(message.find("33554432 MiB of shared memory needed for sums"), std::string::npos)
        << message;
    EXPECT_NE(message.find("--memory"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    collective.barrier();  // the collective itself is whole
    EXPECT_EQ(files_left(), std::vector<std::string>{});
  });
}

TEST(ShmFailures, RefuseABlobBeyondTheLimit) {
  run_ranks(2, [](Collective& collective) {
    const std::vector<std::byte> largest(Collective::kGatherBytesMax);
    EXPECT_EQ(collective.all_gather_bytes(largest)[1].size(), Collective::kGatherBytesMax);
    const std::vector<std::byte> too_large(Collective::kGatherBytesMax + 1);
    EXPECT_THROW(collective.all_gather_bytes(too_large), CollectiveError);
  });
}

}  // namespace
}  // namespace ddprun::worker
