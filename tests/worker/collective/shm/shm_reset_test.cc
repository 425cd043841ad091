// Ranks that give up what is under way, and go on together.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/shm/shm_collective.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kElements = 5000;

// The work of a rank with the others; the same on all of them.
using Call = std::function<void(Collective&, float* memory)>;

const std::vector<Call>& calls() {
  static const std::vector<Call> all{
      [](Collective& collective, float* /*memory*/) { collective.barrier(); },
      [](Collective& collective, float* /*memory*/) {
        const std::vector<std::byte> mine(static_cast<std::size_t>(collective.rank()) * 100);
        EXPECT_EQ(collective.all_gather_bytes(mine).back().size(),
                  static_cast<std::size_t>(collective.world_size() - 1) * 100);
      },
      [](Collective& collective, float* /*memory*/) {
        std::vector<float> values(200'000, static_cast<float>(collective.rank()));
        collective.broadcast({values.data(), values.size(), Dtype::kFloat32}, 1);
        EXPECT_EQ(values.back(), 1.0F);
      },
      [](Collective& collective, float* memory) {
        for (std::size_t i = 0; i < kElements; ++i) memory[i] = static_cast<float>(i);
        collective.wait(collective.launch_sum({memory, kElements, Dtype::kFloat32}));
        EXPECT_EQ(memory[kElements - 1],
                  static_cast<float>(kElements - 1) * static_cast<float>(collective.world_size()));
      }};
  return all;
}

void all_calls(Collective& collective, float* memory) {
  for (const Call& call : calls()) call(collective, memory);
}

TEST(ShmReset, ReleasesRanksWhateverTheyWaitIn) {
  run_ranks(3, [](Collective& collective) {
    const auto memory = collective.allocate(kElements * sizeof(float));
    auto* values = reinterpret_cast<float*>(memory.get());
    all_calls(collective, values);
    for (std::size_t call = 0; call < calls().size(); ++call) {
      if (collective.rank() != 0) {
        const std::string message = message_of([&] { calls()[call](collective, values); });
        // The root of a broadcast may be done before it hears of it.
        const bool done = call == 2 && message.empty();
        EXPECT_TRUE(done || message.starts_with("rank 0 has called reset()"))
            << call << ": " << message;
      }
      collective.reset();
      all_calls(collective, values);
    }
  });
}

TEST(ShmReset, LeavesNothingOfBeforeWhereverARankStops) {
  run_ranks(4, [](Collective& collective) {
    const auto memory = collective.allocate(kElements * sizeof(float));
    auto* values = reinterpret_cast<float*>(memory.get());
    std::mt19937 dice(7);  // the same on all ranks
    for (int round = 0; round < 200; ++round) {
      const auto stops = dice() % 4;
      const auto after = dice() % 6;
      std::vector<std::size_t> plan;
      for (int i = 0; i < 12; ++i) plan.push_back(dice() % calls().size());
      try {
        for (std::size_t i = 0; i < plan.size(); ++i) {
          if (stops == static_cast<unsigned>(collective.rank()) && i == after) break;
          calls()[plan[i]](collective, values);
        }
      } catch (const CollectiveError& error) {
        EXPECT_NE(std::string(error.what()).find(" has called reset()"), std::string::npos)
            << error.what();
      }
      collective.reset();
      all_calls(collective, values);
    }
  });
}

TEST(ShmReset, FailsWhereARankHasDied) {
  const auto statuses = run_ranks_to_end({.ranks = 3}, [](Collective& collective) {
    if (collective.rank() == 1) ::raise(SIGKILL);
    const std::string message = message_of([&] { collective.reset(); });
    EXPECT_NE(message.find("rank 1 (pid "), std::string::npos) << message;
    EXPECT_NE(message.find("has ended"), std::string::npos) << message;
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[2], 0);
}

TEST(ShmReset, EndsAtItsDeadlineWhereARankDoesNotCallIt) {
  int late[2];
  ASSERT_EQ(::pipe(late), 0);
  const RanksOptions options{.ranks = 2, .timeout = std::chrono::milliseconds(300)};
  const auto statuses = run_ranks_to_end(options, [&late](Collective& collective) {
    char byte = 0;
    if (collective.rank() == 1) {
      // It waits in no operation, so it does not hear of the reset.
      EXPECT_EQ(::read(late[0], &byte, 1), 1);
      return;
    }
    const std::string message = message_of([&] { collective.reset(); });
    EXPECT_NE(message.find("reset: rank 1 did not come within 0.3 s"), std::string::npos)
        << message;
    EXPECT_EQ(::write(late[1], &byte, 1), 1);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  ::close(late[0]);
  ::close(late[1]);
}

}  // namespace
}  // namespace ddprun::worker
