// The NCCL collective where a GPU, a peer or NCCL fails, on a simulated GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/worker/collective/nccl/simulated_ranks.h"
#include "worker/collective/nccl/nccl_ranks.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

// The bring-up must come to its end in that time on a host that is busy.
constexpr auto kShort = 2000ms;

class NcclFailures : public SimulatedGpu {
 protected:
  // Every call throws it, as often as it is made.
  static void expect_failed(Collective& collective, const std::string& why) {
    const std::array<std::byte, 64> foreign{};
    const Flat flat{const_cast<std::byte*>(foreign.data()), 64, Dtype::kUInt8};
    const std::vector<std::function<void()>> calls{
        [&] { collective.barrier(); },        [&] { collective.wait(0); },
        [&] { collective.progress(); },       [&] { collective.check(); },
        [&] { collective.allocate(64); },     [&] { collective.all_gather_bytes({}); },
        [&] { collective.launch_sum(flat); }, [&] { collective.broadcast(flat, 0); },
        [&] { collective.split(0, 0); }};
    for (const auto& call : calls) EXPECT_EQ(message_of(call), why);
  }
};

// The host waits for its stream, as torch does in item(). The stream waits for a sum that never
// comes.
TEST_F(NcclFailures, TheDeadlineEndsASumAndFreesTheHost) {
  run({.timeout = kShort}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().hang = true;
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    cudaStreamSynchronize(rank.stream);
    const std::string why = failure_of(*rank.collective);
    EXPECT_EQ(why,
              "rank 0: sum of 16 bytes (operation 2): not complete after 2 s: another rank has "
              "not come, or the transport hangs (NCCL_DEBUG=INFO says more)");
    expect_failed(*rank.collective, why);
    const auto record = nlohmann::json::parse(rank.collective->flight_record());
    EXPECT_EQ(record["entries"].back()["state"], "started");
  });
  EXPECT_EQ(sim::controls().revokes, 1);
  EXPECT_EQ(sim::controls().aborts, 1);
  EXPECT_EQ(sim::controls().aborts_before_a_revoke, 0);
  EXPECT_EQ(sim::controls().destroys, 0);
}

TEST_F(NcclFailures, AnOldNcclIsAbortedWithoutARevoke) {
  run({.timeout = kShort, .optional = [](int) { return NcclOptional(); }}, [](Rank& rank) {
    sim::controls().hang = true;
    const std::string why = message_of([&] { rank.collective->barrier(); });
    EXPECT_NE(why.find("barrier (operation 2): not complete after 2 s"), std::string::npos) << why;
    expect_failed(*rank.collective, why);
  });
  EXPECT_EQ(sim::controls().revokes, 0);
  EXPECT_EQ(sim::controls().aborts, 1);
}

TEST_F(NcclFailures, ARevokeThatHangsIsFollowedByTheAbort) {
  run({.timeout = kShort}, [](Rank& rank) {
    sim::controls().hang = sim::controls().revoke_hangs = true;
    EXPECT_NE(message_of([&] { rank.collective->barrier(); }), "");
  });
  EXPECT_EQ(sim::controls().revokes, 1);
  EXPECT_EQ(sim::controls().aborts, 1);
}

// The abort frees memory, and may so wait for anything.
TEST_F(NcclFailures, WhoeverWaitsIsToldWhileTheAbortHangs) {
  const std::vector<std::function<void(Rank&)>> waits{
      [](Rank& rank) { rank.collective->barrier(); },
      [](Rank& rank) { rank.collective->all_gather_bytes({}); },
      [](Rank& rank) {
        const auto memory = rank.filled(4, 1);
        for (std::uint32_t i = 0; i <= Collective::kLaunchedMax; ++i)
          rank.collective->launch_sum(floats(memory, 4));
      }};
  for (const auto& wait : waits) {
    run({.timeout = kShort}, [&](Rank& rank) {
      sim::controls().hang = sim::controls().abort_hangs = true;
      auto told = std::async(std::launch::async, [&] {
        cudaSetDevice(rank.rank);
        return message_of([&] { wait(rank); });
      });
      EXPECT_EQ(told.wait_for(20s), std::future_status::ready);
      sim::controls().abort_hangs = false;
      EXPECT_EQ(message_of([&] { rank.collective->check(); }), told.get());
    });
    sim::controls().hang = false;
  }
}

// To free memory waits for the GPU, and so for what hangs there: the watcher must not do it.
TEST_F(NcclFailures, MemoryToBeFreedDoesNotKeepTheDeadlineBack) {
  run({.timeout = kShort}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    const auto other = rank.filled(4, 1);
    const Ticket first = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(first);
    cudaStreamSynchronize(rank.stream);
    memory.reset();
    sim::controls().hang = true;
    rank.collective->wait(rank.collective->launch_sum(floats(other, 4)));
    cudaStreamSynchronize(rank.stream);
    EXPECT_NE(failure_of(*rank.collective).find("(operation 3)"), std::string::npos);
  });
}

// A peer that never launches: the ranks' first look at it is the deadline.
TEST_F(NcclFailures, APeerThatNeverComesIsToldAtTheDeadline) {
  run({.ranks = 2, .timeout = kShort}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    if (rank.rank == 1) return;
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    EXPECT_NE(failure_of(*rank.collective).find("rank 0: sum of 16 bytes (operation 2)"),
              std::string::npos);
  });
}

TEST_F(NcclFailures, ALatePeerIsNoFailure) {
  std::promise<void> waits;
  auto waiting = waits.get_future();
  run({.ranks = 2}, [&](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    if (rank.rank == 1) waiting.wait();
    const Ticket sum = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(sum);
    if (rank.rank == 0) waits.set_value();
    rank.collective->barrier();
    EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 2));
  });
  EXPECT_EQ(sim::controls().aborts, 0);
}

// Each operation has the whole time: it does not pay for those before it.
TEST_F(NcclFailures, ADeadlineCountsFromTheEndOfTheOneBefore) {
  run({.timeout = 4s}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    for (int i = 0; i < 6; ++i) {
      sim::run_on(rank.stream, [] { std::this_thread::sleep_for(800ms); });  // a long kernel
      rank.collective->launch_sum(floats(memory, 4));
    }
    rank.collective->barrier();
  });
  EXPECT_EQ(sim::controls().aborts, 0);
}

TEST_F(NcclFailures, AGpuThatHasNotComeToTheSumIsToldSo) {
  run({.timeout = kShort}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::Gate gate(rank.stream);
    rank.collective->launch_sum(floats(memory, 4));
    const std::string why = failure_of(*rank.collective);
    EXPECT_NE(why.find("this rank's GPU has not come to it"), std::string::npos) << why;
    gate.open();
    cudaStreamSynchronize(rank.stream);
  });
}

TEST_F(NcclFailures, AnErrorOfNcclsEndsWhatIsUnderWay) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().hang = true;
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    sim::controls().async_error = ncclRemoteError;
    cudaStreamSynchronize(rank.stream);
    const std::string why = failure_of(*rank.collective);
    EXPECT_EQ(why,
              "rank 0: sum of 16 bytes (operation 2): NCCL: remote process exited or there was a "
              "network error: as the test wants");
    expect_failed(*rank.collective, why);
  });
  EXPECT_EQ(sim::controls().aborts, 1);
}

TEST_F(NcclFailures, AnErrorOfAKernelOfTheProgramIsTold) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().hang = true;
    rank.collective->launch_sum(floats(memory, 4));
    sim::controls().event_error = cudaErrorIllegalAddress;
    const std::string why = failure_of(*rank.collective);
    EXPECT_NE(why.find("an illegal memory access"), std::string::npos) << why;
  });
  EXPECT_EQ(sim::controls().aborts, 1);
}

// The first error of a launch, on the program's thread, while the watcher looks too.
TEST_F(NcclFailures, AnErrorOfALaunchIsThrownByTheLaunch) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().async_error = ncclSystemError;
    const std::string why = message_of([&] { rank.collective->launch_sum(floats(memory, 4)); });
    EXPECT_NE(why.find("as the test wants"), std::string::npos) << why;
    expect_failed(*rank.collective, why);
  });
}

TEST_F(NcclFailures, ABringUpThatHangsEnds) {
  sim::controls().hang = true;  // the warm-up
  PipeExchange exchange(1);
  const auto joined = join(0, {.timeout = kShort}, exchange, nullptr);
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message().find("barrier (operation 1): not complete"), std::string::npos)
      << joined.error().message();
}

// NCCL's own bring-up: the other rank has taken the id, and died.
TEST_F(NcclFailures, ABringUpWithoutAPeerEnds) {
  PipeExchange exchange(2);
  std::thread peer([&] {
    EXPECT_TRUE(exchange.arrive());
    EXPECT_TRUE(exchange.hear());
  });
  const auto joined = join(0, {.ranks = 2, .timeout = 200ms}, exchange, nullptr);
  peer.join();
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message().find("NCCL bring-up: not complete after 0.2 s"),
            std::string::npos)
      << joined.error().message();
  EXPECT_EQ(sim::controls().aborts, 1);
  EXPECT_EQ(sim::controls().revokes, 0) << "NCCL may have no streams yet, which a revoke uses";
}

// With the usual ten minutes: only the desync report can end it so soon.
TEST_F(NcclFailures, RanksThatDoDifferentThingsEndAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  run({.ranks = 2, .timeout = 600s, .board = true}, [&](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    rank.collective->barrier();
    std::string why;
    if (rank.rank == 0) {
      why = message_of([&] { rank.collective->barrier(); });
    } else {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
      why = failure_of(*rank.collective);
    }
    EXPECT_EQ(
        why,
        "rank 0 is in barrier (operation 3), rank 1 in sum of 16 bytes (operation 3): they do "
        "different things, and none of them can go on");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

TEST_F(NcclFailures, ARankThatHasEndedIsNamed) {
  run({.ranks = 2, .timeout = 600s, .board = true}, [](Rank& rank) {
    if (rank.rank == 1) return;
    EXPECT_EQ(message_of([&] { rank.collective->barrier(); }),
              "rank 0 waits in barrier (operation 2), and rank 1 has ended: its last operation was "
              "barrier (operation 1)");
  });
}

TEST_F(NcclFailures, TheDeadlineNamesWhoHasNotCome) {
  std::promise<void> told;
  auto tells = told.get_future();
  std::atomic<int> tellers = 0;
  run({.ranks = 3, .timeout = kShort, .board = true}, [&](Rank& rank) {
    if (rank.rank == 1) return tells.wait();
    const std::string why = message_of([&] { rank.collective->barrier(); });
    EXPECT_NE(why.find("rank 1 was not seen in it (nor in any other)"), std::string::npos) << why;
    EXPECT_EQ(why.find("rank 2 was"), std::string::npos) << why;
    if (++tellers == 2) told.set_value();
  });
}

}  // namespace
}  // namespace ddprun::worker
