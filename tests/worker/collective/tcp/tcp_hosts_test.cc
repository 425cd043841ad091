// Ranks on two hosts: what they send, and what a cut cable does to them.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/worker/collective/tcp/two_hosts.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

class TcpHosts : public TwoHosts {
 protected:
  struct Found {
    double ratio = 0;  // most bytes that a host has sent, by those of the buffer
    std::uint64_t hash = 0;
  };

  // Sums some buffers of that many numbers, and says the cost of one of them to the host. It is the
  // least, since TCP sends again what a busy kernel drops.
  static Found measure(Collective& ranks, std::size_t count) {
    constexpr int kSums = 5;
    const auto memory = ranks.allocate(count * 4);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    Found found{.ratio = std::numeric_limits<double>::max()};
    for (int sum = 0; sum < kSums; ++sum) {
      for (std::size_t i = 0; i < count; ++i)
        numbers[i] =
            1.0F / static_cast<float>(1 + (i + static_cast<std::size_t>(ranks.rank())) % 1009);
      ranks.barrier();
      const std::uint64_t before = sent_bytes();
      ranks.wait(ranks.launch_sum({numbers, count, Dtype::kFloat32}));
      ranks.barrier();
      const auto sent = static_cast<double>(sent_bytes() - before);
      found.ratio = std::min(found.ratio, sent / static_cast<double>(count * 4));
      for (std::size_t i = 0; i < count; ++i)
        found.hash = (found.hash ^ std::bit_cast<std::uint32_t>(numbers[i])) * 0x100000001b3U;
    }
    return found;
  }

  // Finds the worst ratio for buffers of 1 MiB and more.
  static Found measure(Collective& ranks) {
    const Found small = measure(ranks, std::size_t{1} << 18);
    const Found large = measure(ranks, std::size_t{1} << 21);
    return {std::max(small.ratio, large.ratio), small.hash ^ large.hash};
  }

  // Returns the findings of each rank.
  static std::vector<Found> found_by(const RanksOptions& options) {
    const std::size_t bytes = sizeof(Found) * static_cast<std::size_t>(options.ranks);
    void* shared =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* found = static_cast<Found*>(shared);
    run_ranks(options, [=](Collective& ranks) { found[ranks.rank()] = measure(ranks); });
    const std::vector<Found> all(found, found + options.ranks);
    ::munmap(shared, bytes);
    return all;
  }

  // 2(H-1)/H of the bytes, for H = 2 hosts, and 3 % for what TCP and IP put around them.
  static void expect_least(const char* what, const std::vector<Found>& found) {
    for (const Found& of_rank : found) {
      std::printf("%s: a host sends %.3f of a buffer's bytes\n", what, of_rank.ratio);
      EXPECT_GE(of_rank.ratio, 1.0);
      EXPECT_LE(of_rank.ratio, 1.03);
      EXPECT_EQ(of_rank.hash, found.front().hash);
    }
  }
};

TEST_F(TcpHosts, SumOverTheCable) {
  run_ranks(ranks(20s), [](Collective& both) {
    constexpr std::size_t kCount = 1'000'000;
    const auto memory = both.allocate(kCount * 4);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, kCount, static_cast<float>(both.rank() + 1));
    both.wait(both.launch_sum({numbers, kCount, Dtype::kFloat32}));
    EXPECT_EQ(std::count(numbers, numbers + kCount, 3.0F), std::ptrdiff_t{kCount});
  });
}

TEST_F(TcpHosts, SendNoMoreThanTheyMust) { expect_least("tcp, 1+1", found_by(ranks(20s))); }

TEST_F(TcpHosts, SendNoMoreThanTheyMustWithTwoRanksEachAndSumAlikeInEachRun) {
  std::vector<std::uint64_t> sums;
  for (int run = 0; run < 2; ++run) {
    Exchanges exchanges;
    const auto found = found_by(ranks_of_both(exchanges));
    expect_least("hierarchical, 2+2", found);
    sums.push_back(found.front().hash);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

// Rank 1 has sent part of its sum when rank 0 cuts the cable and begins to take it.
TEST_F(TcpHosts, ACableThatIsCutInTheMiddleOfASum) {
  PipeExchange launched(2);
  constexpr auto kDeadline = 2s;
  run_ranks(ranks(kDeadline), [&](Collective& both) {
    constexpr std::size_t kCount = 20'000'000;
    const auto memory = both.allocate(kCount * 4);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    std::chrono::steady_clock::time_point begin;
    const std::string message = message_of([&] {
      const Ticket ticket = both.rank() == 1 ? both.launch_sum(all) : 0;
      EXPECT_TRUE(launched.arrive().has_value());
      begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(both.rank() != 0 || set_cable("down"));
      both.wait(both.rank() == 1 ? ticket : both.launch_sum(all));
    });
    EXPECT_LE(std::chrono::steady_clock::now() - begin, kDeadline + kLate);
    const std::string other = both.rank() == 0 ? "rank 1 on host1" : "rank 0 on host0";
    EXPECT_NE(message.find(other), std::string::npos) << message;
    EXPECT_NE(message.find(" 2 s; "), std::string::npos) << message;
  });
}

// Kernels send again what was lost.
TEST_F(TcpHosts, ACableThatIsDownForAMomentChangesNothing) {
  PipeExchange launched(2);
  run_ranks(ranks(30s), [&](Collective& both) {
    constexpr std::size_t kCount = 20'000'000;
    const auto memory = both.allocate(kCount * 4);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, kCount, 1.0F);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    Ticket ticket = both.rank() == 1 ? both.launch_sum(all) : 0;
    EXPECT_TRUE(launched.arrive().has_value());
    if (both.rank() == 0) {
      EXPECT_TRUE(set_cable("down"));
      ticket = both.launch_sum(all);
      EXPECT_TRUE(set_cable("up"));
    }
    both.wait(ticket);
    EXPECT_EQ(std::count(numbers, numbers + kCount, 2.0F), std::ptrdiff_t{kCount});
  });
}

}  // namespace
}  // namespace ddprun::worker
