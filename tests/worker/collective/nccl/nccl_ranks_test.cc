// The NCCL collective where all goes well, on a simulated GPU.
#include "worker/collective/nccl/nccl_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/worker/collective/nccl/simulated_ranks.h"

namespace ddprun::worker {
namespace {

class NcclRanksTest : public SimulatedGpu {};

TEST_F(NcclRanksTest, WaitOrdersTheStreamAndReturnsAtOnce) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 3);
    sim::controls().hang = true;
    const int before = sim::host_waits();
    const Ticket sum = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(sum);
    rank.collective->progress();
    EXPECT_EQ(sim::host_waits(), before);
    // This work comes after wait() in the program's stream.
    std::promise<void> ran;
    auto after = ran.get_future();
    sim::run_on(rank.stream, [&ran] { ran.set_value(); });
    EXPECT_EQ(after.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    sim::controls().hang = false;
    EXPECT_EQ(after.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 3));
  });
}

// They are dear to make: two for each sum.
TEST_F(NcclRanksTest, EventsAreUsedAgain) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 3);
    const auto sum = [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
      cudaStreamSynchronize(rank.stream);
      rank.collective->barrier();
    };
    for (int i = 0; i < 3; ++i) sum();
    const int made = sim::controls().events;
    for (int i = 0; i < 20; ++i) sum();
    // The watcher gives its own back a little later.
    EXPECT_LE(sim::controls().events, made + 4);
  });
}

TEST_F(NcclRanksTest, SumsWhatTheProgramsStreamsWrite) {
  run({.ranks = 3, .last_ticket = 0xFFFF'FFFEU}, [](Rank& rank) {
    Ticket last = 0;
    std::vector<std::shared_ptr<std::byte>> buckets;
    for (int i = 0; i < 4; ++i) {
      buckets.push_back(rank.filled(1000, static_cast<float>(rank.rank + i)));
      last = rank.collective->launch_sum(floats(buckets.back(), 1000));
    }
    rank.collective->wait(last);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(rank.read(buckets[static_cast<std::size_t>(i)], 1000),
                std::vector<float>(1000, static_cast<float>(3 + 3 * i)));
    }
    EXPECT_EQ(last, 2U);
  });
}

// Two ranks, so that each result is exact, or rounded once.
TEST_F(NcclRanksTest, ReducesAllTypesInAllWays) {
  run({.ranks = 2}, [](Rank& rank) {
    constexpr std::size_t kCount = 3;
    const auto check = [&]<typename T>(Dtype dtype, T /*of*/) {
      for (const auto& [reduction, expected] :
           std::map<Reduction, std::array<int, kCount>>{{Reduction::kSum, {2, 13, 20}},
                                                        {Reduction::kAverage, {1, 6, 10}},
                                                        {Reduction::kMin, {0, 4, 10}},
                                                        {Reduction::kMax, {2, 9, 10}}}) {
        const bool averages = reduction == Reduction::kAverage;
        if (averages && std::is_integral_v<T>) continue;  // for floats only
        const auto memory = rank.collective->allocate(kCount * sizeof(T));
        auto* const values = reinterpret_cast<T*>(memory.get());
        sim::run_on(rank.stream,
                    [=, first = rank.rank == 0] {
                      values[0] = static_cast<T>(first ? 0 : 2);
                      values[1] = static_cast<T>(first ? 9 : 4);
                      values[2] = static_cast<T>(10);
                    },
                    {sim::writes(values)});
        rank.collective->wait(rank.collective->launch({values, kCount, dtype}, reduction));
        cudaStreamSynchronize(rank.stream);
        for (std::size_t i = 0; i < kCount; ++i) {
          const double half = averages && i == 1 ? 0.5 : 0;
          EXPECT_EQ(static_cast<double>(values[i]), expected[i] + half)
              << name_of(dtype) << ' ' << static_cast<int>(reduction) << ' ' << i;
        }
      }
    };
    check(Dtype::kFloat32, float{});
    check(Dtype::kFloat64, double{});
    check(Dtype::kFloat16, _Float16{});
    check(Dtype::kInt32, std::int32_t{});
    check(Dtype::kInt64, std::int64_t{});
    check(Dtype::kInt8, std::int8_t{});
    check(Dtype::kUInt8, std::uint8_t{});
  });
}

TEST_F(NcclRanksTest, AStepOfManySumsMakesNoHostWait) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto memory = rank.collective->allocate(std::size_t{16} << 10);
    void* plain = nullptr;
    cudaMalloc(&plain, 16);
    const auto before = sim::host_waits();
    for (int step = 0; step < 20; ++step) {
      Ticket last = 0;
      for (int bucket = 0; bucket < 4; ++bucket) {
        last = rank.collective->launch_sum(floats(memory, 1024));
        rank.collective->progress();
      }
      rank.collective->wait(last);
      rank.collective->broadcast({plain, 16, Dtype::kUInt8}, 0);
      rank.collective->check();
      rank.collective->barrier();
    }
    EXPECT_EQ(sim::host_waits(), before);
    cudaFree(plain);
  });
}

TEST_F(NcclRanksTest, BroadcastsAndSendsInTheStream) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto memory = rank.filled(8, static_cast<float>(rank.rank + 1));
    rank.collective->broadcast(floats(memory, 8), 1);
    EXPECT_EQ(rank.read(memory, 8), std::vector<float>(8, 2));
    const auto sent = rank.filled(8, static_cast<float>(10 * (rank.rank + 1)));
    if (rank.rank == 0) rank.collective->send(floats(sent, 8), 1);
    if (rank.rank == 1) rank.collective->receive(floats(sent, 8), 0);
    EXPECT_EQ(rank.read(sent, 8), std::vector<float>(8, 10));
    EXPECT_THROW(rank.collective->send(floats(sent, 8), rank.rank), CollectiveError);
  });
}

// The parts are uneven, one rank has none, and elements 9 to 11 belong to nobody.
TEST_F(NcclRanksTest, ReducesAndGathersParts) {
  run({.ranks = 3}, [](Rank& rank) {
    const auto me = static_cast<float>(rank.rank + 1);
    const auto memory = rank.filled(16, me);
    const Flat flat = floats(memory, 16);
    const std::vector<Part> parts{{2, 4, 9}, {0, 0, 4}, {2, 3, 3}, {0, 12, 16}};
    auto& ranks = *rank.collective;
    ranks.wait(ranks.launch_reduce_scatter(flat, parts, Reduction::kSum));
    std::vector<float> wanted(16, me);
    for (const auto& part : parts) {
      if (part.owner == rank.rank)
        std::fill(wanted.begin() + static_cast<std::ptrdiff_t>(part.begin),
                  wanted.begin() + static_cast<std::ptrdiff_t>(part.end), 6.0F);
    }
    EXPECT_EQ(rank.read(memory, 16), wanted);
    ranks.wait(ranks.launch_all_gather(flat, parts));
    wanted.assign(16, 6);
    std::fill_n(wanted.begin() + 9, 3, me);
    EXPECT_EQ(rank.read(memory, 16), wanted);
    ranks.wait(ranks.launch_all_gather(flat, {}));
    EXPECT_THROW(ranks.launch_all_gather(flat, std::vector<Part>{{3, 0, 1}}),
                 std::invalid_argument);
    ranks.barrier();
    const auto record = nlohmann::json::parse(ranks.flight_record());
    EXPECT_EQ(record["entries"][1]["profiling_name"], "nccl:reduce_scatter");
    EXPECT_EQ(record["entries"][2]["profiling_name"], "nccl:all_gather");
    EXPECT_EQ(record["entries"][3]["state"], "completed");
  });
}

// NCCL has calls of its own for these. Elements before and behind the parts stay.
TEST_F(NcclRanksTest, ReducesAndGathersEqualParts) {
  run({.ranks = 4}, [](Rank& rank) {
    const auto me = static_cast<float>(rank.rank + 1);
    const auto memory = rank.filled(16, me);
    const Flat flat = floats(memory, 16);
    const std::vector<Part> parts{{0, 2, 5}, {1, 5, 8}, {2, 8, 11}, {3, 11, 14}};
    auto& ranks = *rank.collective;
    ranks.wait(ranks.launch_reduce_scatter(flat, parts, Reduction::kAverage));
    ranks.wait(ranks.launch_all_gather(flat, parts));
    std::vector<float> wanted(16, 2.5F);
    wanted[0] = wanted[1] = wanted[14] = wanted[15] = me;
    EXPECT_EQ(rank.read(memory, 16), wanted);
    ranks.barrier();
    EXPECT_EQ(sim::controls().groups, 0);
  });
}

// Uneven, in both directions, to several ranks and to oneself. Rank 2 gives nothing.
TEST_F(NcclRanksTest, GivesElementsToOthers) {
  run({.ranks = 3}, [](Rank& rank) {
    const auto me = static_cast<float>(rank.rank + 1);
    const auto memory = rank.filled(16, me);
    const Flat flat = floats(memory, 16);
    const std::vector<Transfer> transfers{{0, 1, 0, 3, 8}, {1, 0, 0, 2, 10}, {0, 2, 0, 3, 8},
                                          {0, 0, 4, 6, 8}, {1, 2, 2, 2, 15}, {1, 2, 5, 6, 15}};
    auto& ranks = *rank.collective;
    ranks.wait(ranks.launch_all_to_all(flat, transfers));
    std::vector<float> wanted(16, me);
    for (const auto& one : transfers) {
      if (one.to == rank.rank)
        std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(one.target), one.end - one.begin,
                    static_cast<float>(one.from + 1));
    }
    EXPECT_EQ(rank.read(memory, 16), wanted);
    ranks.wait(ranks.launch_all_to_all(flat, {}));
    EXPECT_THROW(ranks.launch_all_to_all(flat, std::vector<Transfer>{{0, 3, 0, 1, 8}}),
                 std::invalid_argument);
    ranks.barrier();
    const auto record = nlohmann::json::parse(ranks.flight_record());
    EXPECT_EQ(record["entries"][1]["profiling_name"], "nccl:all_to_all");
    EXPECT_EQ(record["entries"][2]["state"], "completed");
  });
}

TEST_F(NcclRanksTest, GathersBytesOfAnyLength) {
  run({.ranks = 3}, [](Rank& rank) {
    for (const std::size_t unit : {0, 1, 1000}) {
      const std::vector<std::byte> mine(unit * static_cast<std::size_t>(rank.rank),
                                        static_cast<std::byte>(rank.rank));
      const auto all = rank.collective->all_gather_bytes(mine);
      ASSERT_EQ(all.size(), 3U);
      for (std::size_t peer = 0; peer < 3; ++peer)
        EXPECT_EQ(all[peer], std::vector<std::byte>(unit * peer, static_cast<std::byte>(peer)));
    }
    double metric[] = {1.5};
    rank.collective->sum(metric);
    EXPECT_EQ(metric[0], 4.5);
  });
}

TEST_F(NcclRanksTest, HoldsMemoryUntilTheSumIsOver) {
  run({}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    const std::weak_ptr<std::byte> seen = memory;
    sim::controls().hang = true;
    const Ticket sum = rank.collective->launch_sum(floats(memory, 4));
    memory.reset();
    rank.collective->wait(sum);
    rank.collective->progress();
    EXPECT_FALSE(seen.expired());
    sim::controls().hang = false;
    EXPECT_TRUE(comes_true([&] {
      rank.collective->progress();
      return seen.expired();
    }));
  });
}

TEST_F(NcclRanksTest, ClearsMemoryAndRefusesWhatIsNotItsOwn) {
  run({}, [](Rank& rank) {
    const auto memory = rank.collective->allocate(64);
    EXPECT_EQ(rank.read(memory, 16), std::vector<float>(16, 0));
    std::array<float, 16> foreign{};
    EXPECT_THROW(rank.collective->launch_sum({foreign.data(), 16, Dtype::kFloat32}),
                 CollectiveError);
    EXPECT_THROW(rank.collective->launch_sum(floats(memory, 17)), CollectiveError);
    rank.collective->barrier();  // it has not failed
    EXPECT_NE(rank.collective->allocate(0), nullptr);
  });
}

TEST_F(NcclRanksTest, RegistersItsMemory) {
  std::shared_ptr<std::byte> outlives;
  run({.ranks = 2}, [&](Rank& rank) {
    const auto memory = rank.collective->allocate(1024);
    if (rank.rank == 0) outlives = rank.collective->allocate(1024);
    rank.collective->barrier();
    EXPECT_EQ(sim::controls().registered, 3);
    rank.collective->barrier();
  });
  EXPECT_EQ(sim::controls().registered, 0);
  EXPECT_EQ(sim::controls().destroys, 2);
  EXPECT_EQ(sim::controls().blocks, 1);
  outlives.reset();
}

// One rank's NCCL is too old, or refuses: then no rank registers.
TEST_F(NcclRanksTest, RegistersNothingWhereOneRankCannot) {
  run({.ranks = 2,
       .optional = [](int rank) { return rank == 0 ? sim::all_optional() : NcclOptional(); }},
      [](Rank& rank) {
        const auto memory = rank.filled(4, 1);
        rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
        EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 2));
        EXPECT_EQ(sim::controls().registered, 0);
      });
  sim::controls().refuses_to_register = ncclSystemError;
  run({}, [](Rank& rank) {
    const auto memory = rank.collective->allocate(64);
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
  });
  EXPECT_EQ(sim::controls().aborts, 0);
}

TEST_F(NcclRanksTest, KeepsARecordOfItsOperations) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    const Ticket sum = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(sum);
    rank.collective->all_gather_bytes({});
    const auto record = nlohmann::json::parse(rank.collective->flight_record());
    ASSERT_EQ(record["entries"].size(), 3U);  // the first one is that of the bring-up
    EXPECT_EQ(record["entries"][1]["profiling_name"], "nccl:all_reduce");
    EXPECT_EQ(record["entries"][1]["input_sizes"][0][0], 4);
    for (const auto& entry : record["entries"]) {
      EXPECT_EQ(entry["state"], "completed") << entry;
      EXPECT_GT(entry["time_discovered_completed_ns"], 0);
    }
    EXPECT_EQ(record["pg_status"]["0"]["last_completed_collective"], 3);
  });
}

TEST_F(NcclRanksTest, TheWatcherSleepsWhileNothingIsUnderWay) {
  run({}, [](Rank& rank) {
    rank.collective->barrier();
    const int looks = sim::controls().event_queries;
    std::promise<void> never;
    EXPECT_EQ(never.get_future().wait_for(std::chrono::milliseconds(50)),
              std::future_status::timeout);
    EXPECT_EQ(sim::controls().event_queries, looks);
  });
}

// Keys turn the order of ranks around. One group goes after the ranks that it comes of.
TEST_F(NcclRanksTest, SplitsIntoGroups) {
  const auto splits = [](Rank& rank) {
    const auto group = rank.collective->split(rank.rank % 2, -rank.rank);
    ASSERT_EQ(group->world_size(), 2);
    EXPECT_EQ(group->rank(), 1 - rank.rank / 2);
    double members[] = {static_cast<double>(rank.rank)};
    group->sum(members);
    EXPECT_EQ(members[0], rank.rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(rank.collective->split(rank.rank == 1 ? 5 : -1, 0) == nullptr, rank.rank != 1);
    const auto half = group->split(0, 0);
    rank.collective->barrier();
    rank.collective.reset();
    const auto memory = half->allocate(16);
    half->wait(half->launch_sum(floats(memory, 4)));
    half->barrier();
  };
  run({.ranks = 4}, splits);
  EXPECT_EQ(sim::controls().splits, 4 * 3);
  sim::reset();
  // One rank's NCCL is too old: groups start anew, but in the group without that rank.
  run({.ranks = 4,
       .optional =
           [](int rank) {
             auto optional = sim::all_optional();
             if (rank == 2) optional.split = nullptr;
             return optional;
           }},
      splits);
  EXPECT_EQ(sim::controls().splits, 2);
}

// A model in two halves: the sums of each are ordered with the program's stream on its GPU.
TEST_F(NcclRanksTest, HasASecondGpu) {
  constexpr int kRanks = 2;
  run({.ranks = kRanks}, [](Rank& rank) {
    const int gpu = kRanks + rank.rank;
    const auto second = rank.collective->on_gpu(gpu);
    EXPECT_EQ(rank.collective->gpu(), rank.rank);
    EXPECT_EQ(second->gpu(), gpu);
    EXPECT_EQ(second->rank(), rank.rank);
    int here = -1;
    cudaGetDevice(&here);
    EXPECT_EQ(here, rank.rank) << "the thread keeps its GPU";
    const auto own = rank.filled(100, 1);
    const auto other = second->allocate(100 * sizeof(float));
    cudaStream_t stream = rank.others->at(gpu);
    sim::Gate gate(stream, {sim::writes(other.get())});
    sim::run_on(
        stream,
        [=, numbers = reinterpret_cast<float*>(other.get())] { std::fill_n(numbers, 100, 5); },
        {sim::writes(other.get())});
    const int waits = sim::host_waits();
    const Ticket late = second->launch_sum(floats(other, 100));
    const Ticket early = rank.collective->launch_sum(floats(own, 100));
    second->wait(late);
    rank.collective->wait(early);
    EXPECT_EQ(sim::host_waits(), waits);
    EXPECT_EQ(rank.read(own, 100), std::vector<float>(100, 2)) << "it waits for its own GPU alone";
    gate.open();
    cudaStreamSynchronize(stream);
    const auto* sum = reinterpret_cast<const float*>(other.get());
    EXPECT_EQ(std::vector<float>(sum, sum + 100), std::vector<float>(100, 10));
    // A group of its ranks is there, too.
    EXPECT_EQ(second->split(0, -rank.rank)->gpu(), gpu);
    const std::string why = [&] {
      try {
        rank.collective->on_gpu(8);
      } catch (const std::invalid_argument& error) {
        return std::string(error.what());
      }
      return std::string();
    }();
    EXPECT_EQ(why,
              "on_gpu(8): expected a number from 0 on below the 8 GPUs that this process sees");
  });
}

TEST_F(NcclRanksTest, TellsThatARankDoesNotSplit) {
  run({.ranks = 2, .timeout = std::chrono::milliseconds(300)}, [](Rank& rank) {
    if (rank.rank == 1) return;
    EXPECT_NE(message_of([&] { rank.collective->split(0, 0); }), "");
  });
  EXPECT_EQ(sim::controls().splits, 0) << "it has not come to ncclCommSplit()";
}

// The ranks have agreed on the groups, and one of them does not come to ncclCommSplit().
TEST_F(NcclRanksTest, TellsThatARankDoesNotComeToTheSplit) {
  std::promise<void> told;
  auto tells = told.get_future();
  run({.ranks = 2, .timeout = std::chrono::milliseconds(300)}, [&](Rank& rank) {
    if (rank.rank == 1) {
      gather_split_requests(*rank.collective, {0, 1});
      return tells.wait();
    }
    const std::string why = message_of([&] { rank.collective->split(0, 0); });
    EXPECT_NE(why.find("rank 0"), std::string::npos) << why;
    EXPECT_EQ(sim::controls().splits, 1);
    EXPECT_EQ(message_of([&] { rank.collective->barrier(); }), why) << "the ranks are apart";
    told.set_value();
  });
}

}  // namespace
}  // namespace ddprun::worker
