// The NCCL collective where a GPU, a peer or NCCL fails, on a simulated GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

// A kernel of the program that never ends: NCCL's kernels cannot leave their streams.
TEST_F(NcclFailures, AnAbortThatHangsEndsTheProcessWithItsRecord) {
  std::promise<std::pair<std::string, std::string>> ended;
  run({.timeout = kShort,
       .limits = {.abort = 500ms},
       .end_process =
           [&](int, const std::string& why, const std::string& record) {
             ended.set_value({why, record});
           }},
      [&](Rank& rank) {
        const auto memory = rank.filled(4, 1);
        sim::Gate endless(rank.stream);
        rank.collective->launch_sum(floats(memory, 4));
        const std::string told = failure_of(*rank.collective);
        EXPECT_NE(told.find("this rank's GPU has not come to it"), std::string::npos) << told;
        auto last_words = ended.get_future();
        ASSERT_EQ(last_words.wait_for(20s), std::future_status::ready);
        const auto [why, record] = last_words.get();
        EXPECT_EQ(why, told +
                           "; NCCL is not aborted after 0.5 s: the GPU hangs, and so this process "
                           "ends");
        EXPECT_EQ(nlohmann::json::parse(record)["entries"].back()["state"], "started");
        endless.open();
      });
}

// A program that catches the error unwinds, whatever the GPU does.
TEST_F(NcclFailures, ACollectiveGoesWhileItsAbortHangs) {
  std::atomic<int> ends = 0;
  run({.timeout = kShort,
       .limits = {.abort = 500ms},
       .end_process = [&](int, const std::string&, const std::string&) { ++ends; }},
      [&](Rank& rank) {
        auto memory = rank.filled(4, 1);
        sim::Gate endless(rank.stream, {sim::reads(memory.get())});
        rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
        EXPECT_NE(failure_of(*rank.collective), "");
        auto gone = std::async(std::launch::async, [&] {
          memory.reset();
          rank.collective.reset();
        });
        EXPECT_EQ(gone.wait_for(20s), std::future_status::ready);
        endless.open();
        cudaStreamSynchronize(rank.stream);
      });
  EXPECT_TRUE(comes_true([&] { return ends == 1 && sim::controls().communicators == 0; }));
}

// CUDA may block one thread while another one waits in it.
TEST_F(NcclFailures, AQueryThatIsNeverAnsweredIsAFailure) {
  run({.timeout = 300ms, .limits = {.silence = 200ms}}, [](Rank& rank) {
    sim::controls().queries_hang = true;
    const std::string why = message_of([&] { rank.collective->barrier(); });
    EXPECT_NE(why.find("rank 0: CUDA has not answered for"), std::string::npos) << why;
    rank.collective.reset();  // the watcher still waits
    sim::controls().queries_hang = false;
  });
}

// The abort of one waits for the kernels of the other.
TEST_F(NcclFailures, TheCommunicatorsOfAGpuFailTogether) {
  std::promise<void> told;
  auto tells = told.get_future();
  run({.ranks = 2, .timeout = 600s}, [&](Rank& rank) {
    auto group = rank.collective->split(0, rank.rank);
    const auto memory = rank.filled(4, 1);
    const auto other = group->allocate(16);
    if (rank.rank == 1) return tells.wait();
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    group->launch_sum(floats(other, 4));
    const std::string why = message_of([&] { group->broadcast(floats(other, 4), 7); });
    EXPECT_NE(why.find("rank 0: broadcast: NCCL: invalid argument"), std::string::npos) << why;
    EXPECT_EQ(failure_of(*rank.collective), why);
    cudaStreamSynchronize(rank.stream);
    told.set_value();
  });
}

// A program waits for the sums of both: one alone would only come to its deadline.
TEST_F(NcclFailures, TheGpusOfARankFailTogether) {
  std::promise<void> told;
  auto tells = told.get_future();
  run({.ranks = 2, .timeout = 600s}, [&](Rank& rank) {
    auto second = rank.collective->on_gpu(2 + rank.rank);
    const auto memory = rank.filled(4, 1);
    const auto other = second->allocate(16);
    if (rank.rank == 1) return tells.wait();
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    const std::string why = message_of([&] { second->broadcast(floats(other, 4), 7); });
    EXPECT_NE(why.find("rank 0: broadcast: NCCL: invalid argument"), std::string::npos) << why;
    EXPECT_EQ(failure_of(*rank.collective), why);
    cudaStreamSynchronize(rank.stream);
    told.set_value();
  });
}

TEST_F(NcclFailures, TheLastWordsOfAProcessAreKept) {
  // The process that ends runs this test from its beginning.
  const char* const given = std::getenv("DDPRUN_LAST_WORDS");
  const std::string folder =
      given != nullptr ? given : ::testing::TempDir() + "last_words_" + std::to_string(::getpid());
  ::setenv("DDPRUN_LAST_WORDS", folder.c_str(), 1);
  std::filesystem::create_directories(folder);
  ::setenv("TORCHELASTIC_ERROR_FILE", (folder + "/error.json").c_str(), 1);
  ::setenv("TORCH_FR_DUMP_TEMP_FILE", (folder + "/trace_").c_str(), 1);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_process_with_records(3, "the GPU \"hangs\"", "a record"),
              ::testing::ExitedWithCode(1), "the GPU \"hangs\"");
  const auto error = nlohmann::json::parse(std::ifstream(folder + "/error.json"));
  EXPECT_EQ(error["message"]["message"], "the GPU \"hangs\"");
  EXPECT_EQ(std::stoll(error["message"]["extraInfo"]["timestamp"].get<std::string>()) > 0, true);
  std::string record;
  std::getline(std::ifstream(folder + "/trace_3"), record);
  EXPECT_EQ(record, "a record");
  for (const char* name :
       {"DDPRUN_LAST_WORDS", "TORCHELASTIC_ERROR_FILE", "TORCH_FR_DUMP_TEMP_FILE"})
    ::unsetenv(name);
  std::filesystem::remove_all(folder);
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
