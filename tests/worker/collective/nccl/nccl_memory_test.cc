// When memory of the NCCL collective goes, and where it lies, on a simulated GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "tests/worker/collective/nccl/simulated_ranks.h"

namespace ddprun::worker {
namespace {

class NcclMemoryTest : public SimulatedGpu {
 protected:
  // Asks until no memory is registered any more.
  static bool goes(Rank& rank) {
    return comes_true([&] {
      rank.collective->check();
      return sim::controls().registered == 0;
    });
  }
};

TEST_F(NcclMemoryTest, GoesWhenTheStreamHasReadIt) {
  run({}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    sim::Gate reads(rank.stream, {sim::reads(memory.get())});
    memory.reset();
    rank.collective->barrier();
    rank.collective->check();
    EXPECT_EQ(sim::controls().registered, 1);
    reads.open();
    EXPECT_TRUE(goes(rank));
  });
}

TEST_F(NcclMemoryTest, GoesWhenTheGraphDoesThatReadsIt) {
  run({}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    ASSERT_EQ(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    sim::run_on(rank.stream, [] {}, {sim::reads(memory.get())});
    memory.reset();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(rank.stream, &graph), cudaSuccess);
    rank.collective->barrier();
    rank.collective->check();
    EXPECT_EQ(sim::controls().registered, 1);
    cudaGraphDestroy(graph);
    EXPECT_TRUE(goes(rank));
  });
}

// Nobody calls the collective any more: the last owner waits for its stream.
TEST_F(NcclMemoryTest, GoesWhenTheStreamHasReadItAlsoAfterTheCollective) {
  for (const bool registers : {true, false}) {
    const auto optional = [=](int) { return registers ? sim::all_optional() : NcclOptional(); };
    run({.optional = optional}, [](Rank& rank) {
      auto memory = rank.filled(4, 1);
      rank.collective.reset();
      sim::Gate reads(rank.stream, {sim::reads(memory.get())});
      const int before = sim::controls().event_waits;
      auto dropped = std::async(std::launch::async, [&] { memory.reset(); });
      EXPECT_TRUE(comes_true(
          [&] { return sim::controls().event_waits > before || sim::controls().blocks == 0; }));
      EXPECT_EQ(sim::controls().blocks, 1);
      reads.open();
      dropped.get();
      EXPECT_EQ(sim::controls().blocks, 0);
    });
  }
}

// NCCL allows no call on a communicator before the last one has settled.
TEST_F(NcclMemoryTest, MayBeDroppedWhileAnotherThreadsCallHasNotSettled) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    auto other = rank.filled(4, 1);
    rank.collective->barrier();
    const int before = sim::controls().launches;
    sim::controls().settles = false;
    auto dropped = std::async(std::launch::async, [&] {
      EXPECT_TRUE(comes_true([&] { return sim::controls().launches > before; }));
      other.reset();
      sim::controls().settles = true;
    });
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    dropped.get();
    EXPECT_TRUE(comes_true([&] {
      rank.collective->check();
      return sim::controls().registered == 1;
    }));
  });
}

TEST_F(NcclMemoryTest, IsOnTheGpuOfTheJobWhateverTheThreadsDevice) {
  run({.ranks = 2}, [](Rank& rank) {
    constexpr int kOther = 5;
    cudaSetDevice(kOther);
    const auto memory = rank.filled(4, 1);
    auto& ranks = *rank.collective;
    ranks.wait(ranks.launch_sum(floats(memory, 4)));
    ranks.broadcast(floats(memory, 4), 0);
    EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 2));
    ranks.barrier();
    EXPECT_EQ(ranks.all_gather_bytes(std::vector<std::byte>(100'000)).size(), 2U);
    ranks.split(0, 0)->barrier();
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, kOther);
    rank.collective.reset();
    cudaGetDevice(&device);
    EXPECT_EQ(device, kOther);
  });
}

// LibTorch's cache may hold what is wanted.
TEST_F(NcclMemoryTest, IsAskedForAgainWhenTheProgramHasGivenItsCacheBack) {
  for (const bool registers : {true, false}) {
    const auto optional = [=](int) { return registers ? sim::all_optional() : NcclOptional(); };
    std::atomic<int> given = 0;
    const auto give_back = [&] {
      ++given;
      sim::controls().out_of_memory = false;
    };
    run({.optional = optional, .give_back = give_back}, [&](Rank& rank) {
      sim::controls().out_of_memory = true;
      const auto memory = rank.filled(4, 3);
      EXPECT_EQ(given, 1);
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "LibTorch's next kernel would throw it";
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
      EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 3));
    });
  }
}

TEST_F(NcclMemoryTest, LeavesTheProgramItsOwnError) {
  run({}, [](Rank& rank) {
    sim::controls().out_of_memory = true;
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorMemoryAllocation);
    sim::controls().out_of_memory = false;
    EXPECT_NE(rank.collective->allocate(16), nullptr);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  });
}

TEST_F(NcclMemoryTest, SaysHowMuchIsWantedAndFreeWhereNothingHelps) {
  run({.give_back = [] {}}, [](Rank& rank) {
    sim::controls().out_of_memory = true;
    const std::string told = message_of([&] { rank.collective->allocate(1000); });
    EXPECT_NE(told.find(": 1000 bytes are wanted, 0 of "), std::string::npos) << told;
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    sim::controls().out_of_memory = false;
    EXPECT_NE(rank.collective->allocate(1000), nullptr) << "the collective goes on";
  });
}

// NCCL forbids it in one call. A broadcast takes any memory, and each rank chooses its own.
TEST_F(NcclMemoryTest, RegisteredMemoryMeetsPlainMemoryOfAnotherRank) {
  run({.ranks = 2}, [](Rank& rank) {
    void* plain = nullptr;
    cudaMalloc(&plain, 16);
    const auto memory = rank.filled(4, static_cast<float>(rank.rank + 1));
    auto& ranks = *rank.collective;
    const auto fill = [&](float value) {
      sim::run_on(rank.stream, [=] { std::fill_n(static_cast<float*>(plain), 4, value); },
                  {sim::writes(plain)});
    };
    const auto read = [&] {
      cudaStreamSynchronize(rank.stream);
      return std::vector<float>(static_cast<float*>(plain), static_cast<float*>(plain) + 4);
    };
    fill(5);
    const Flat unregistered{plain, 4, Dtype::kFloat32};
    ranks.broadcast(rank.rank == 0 ? floats(memory, 4) : unregistered, 0);
    if (rank.rank == 1) {
      EXPECT_EQ(read(), std::vector<float>(4, 1));
      fill(7);
    }
    ranks.broadcast(rank.rank == 0 ? floats(memory, 4) : unregistered, 1);
    if (rank.rank == 0) {
      EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 7));
      ranks.send(floats(memory, 4), 1);
      ranks.receive(floats(memory, 4), 1);
      EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 9));
    } else {
      ranks.receive(unregistered, 0);
      EXPECT_EQ(read(), std::vector<float>(4, 7));
      fill(9);
      ranks.send(unregistered, 0);
    }
    ranks.barrier();
    cudaFree(plain);
  });
}

}  // namespace
}  // namespace ddprun::worker
