#include "rendezvous/core/stragglers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

constexpr std::int64_t kStragglerRound = 1;
constexpr seconds kWindow{20};

// Own time in milliseconds of a rank in a step.
using Own = std::function<double(int rank, int step)>;

// Nodes of four workers each, as sessions 1, 2 and so on. Steps are simulated. Ranks compute and
// call collectives meanwhile. All end a step when the last one has made its last call.
struct StragglersTest : testing::Test {
  void begin(int nodes) {
    membership.emplace(
        RoundPolicy{.min_nodes = nodes, .max_nodes = nodes, .settings = {.last_call = seconds(0)}});
    for (int node = 1; node <= nodes; ++node) {
      NodeSpec spec{.node_id = fmt::format("n{}", node), .local_world_size = 4};
      spec.hostname = fmt::format("node-{}", static_cast<char>('a' + node - 1));
      spec.hears_stragglers = node != deaf;
      membership->joined(static_cast<SessionId>(node), spec, {"10.0.0.1"}, now);
    }
    ASSERT_EQ(membership->phase(), Membership::Phase::kRunning);
    world_size = 4 * nodes;
  }

  // The samples of a window. Each rank's clock has an offset of its own.
  std::vector<StepSample> samples(const Own& own, int steps = 200) {
    std::vector<StepSample> all;
    for (int rank = 0; rank < world_size; ++rank)
      all.push_back({.rank = rank,
                     .group = 7,
                     .members = world_size,
                     .steps = steps,
                     .calls = calls,
                     .called_us = std::vector<std::int64_t>(static_cast<std::size_t>(calls))});
    for (int step = 0; step < steps; ++step) add_step(all, own, step);
    for (StepSample& one : all) {
      one.step_us /= steps;
      for (std::int64_t& called : one.called_us) called /= steps;
    }
    return all;
  }
  void add_step(std::vector<StepSample>& all, const Own& own, int step) const {
    std::vector<double> owns;
    for (int rank = 0; rank < world_size; ++rank) owns.push_back(own(rank, step));
    const double slowest = std::ranges::max(owns);
    for (StepSample& one : all) {
      const double began = 1e6 * one.rank;
      one.step_us += static_cast<std::int64_t>(1000 * (began + slowest + 1 - began));
      for (int call = 1; call <= calls; ++call) {
        const double when = began + owns[static_cast<std::size_t>(one.rank)] * call / calls;
        one.called_us[static_cast<std::size_t>(call - 1)] +=
            static_cast<std::int64_t>(1000 * (when - began));
      }
    }
  }

  // All nodes tell a window, except ranks in `missing`. Returns what is said.
  std::string tell(std::vector<StepSample> all) {
    now += kWindow;
    std::string said;
    for (int node = 1; node <= world_size / 4; ++node) {
      StepReport report{.round = round};
      for (const StepSample& one : all)
        if (one.rank / 4 == node - 1 && !missing.contains(one.rank)) report.samples.push_back(one);
      said += hear(node, report);
    }
    return said;
  }
  std::string hear(int node, const StepReport& report) {
    const auto said = stragglers.reported(static_cast<SessionId>(node), report, *membership, now);
    if (!said) return "";
    last = std::get<StragglerVerdict>(said->message);
    return fmt::format("to {}: {}\n", said->to.size(), last.sentence);
  }
  std::string tell_windows(int count, const Own& own) {
    std::string said;
    for (int window = 0; window < count; ++window) said += tell(samples(own));
    return said;
  }
  // One rank takes longer by so many percent.
  static Own slowed(int slow, double percent) {
    return [=](int rank, int) { return 40 * (1 + (rank == slow ? percent / 100 : 0)); };
  }

  Time now = Time(std::chrono::hours(1));
  std::optional<Membership> membership;
  Stragglers stragglers;
  StragglerVerdict last{};
  std::set<int> missing;
  std::int64_t round = kStragglerRound;
  int world_size = 0;
  int calls = 3;
  int deaf = 0;
};

TEST_F(StragglersTest, ARankThatIsAQuarterSlowerIsNamedAfterThreeWindows) {
  begin(2);
  EXPECT_EQ(tell_windows(2, slowed(6, 25)), "");
  EXPECT_EQ(tell(samples(slowed(6, 25))),
            "to 2: rank 6 on node-b is slower than the others: own time 50.0 ms a step, 1.25 x "
            "the median, for 40 s\n");
  EXPECT_EQ(last.ranks, std::vector<int>{6});
  EXPECT_EQ(tell_windows(50, slowed(6, 25)), "") << "it is said once";
}

// One step in 20 takes longer by so many percent: the mean hardly shows it.
TEST_F(StragglersTest, ARankThatIsSlowInOneOfTwentyStepsIsNamed) {
  begin(1);
  const auto told = [this](double ms, int steps) {
    auto all = samples(slowed(-1, 0), steps);
    for (StepSample& one : all) one.spread.own_p97_us = 40'000;
    all[2].spread.own_p97_us = static_cast<std::int64_t>(1000 * ms);
    return tell(all);
  };
  for (int window = 0; window < 5; ++window) EXPECT_EQ(told(59, 200), "");
  for (int window = 0; window < 5; ++window) EXPECT_EQ(told(100, 59), "") << "few steps";
  EXPECT_EQ(told(100, 200) + told(100, 200), "");
  EXPECT_EQ(told(100, 200),
            "to 1: rank 2 on node-a is slower than the others at times: own time 100.0 ms in 3 % "
            "of the steps, 2.50 x the median, for 60 s\n");
  EXPECT_EQ(last.ranks, std::vector<int>{2});
  EXPECT_EQ(told(100, 200), "") << "it is said once";
}

TEST_F(StragglersTest, TheHostOfASlowRankIsEvidence) {
  begin(1);
  std::string said;
  for (int window = 0; window < 3; ++window) {
    now += kWindow;
    said += hear(1, {.round = round,
                     .host = {.stolen = 120, .throttled = 60, .others = 300, .frequency = 500},
                     .samples = samples(slowed(2, 25))});
  }
  EXPECT_NE(said.find("; the hypervisor took of its host's CPUs 12 %; its cgroup was over its CPU "
                      "quota in 6 %; other programs used of its host's CPUs 30 %; its host's CPUs "
                      "run at 50 %"),
            std::string::npos)
      << said;
}

TEST_F(StragglersTest, FifteenPercentIsTheBound) {
  for (const int percent : {0, 5, 10, 14}) {
    stragglers = {};
    begin(2);
    EXPECT_EQ(tell_windows(180, slowed(3, percent)), "") << percent;
  }
  for (const int percent : {16, 25, 100, 1000}) {
    stragglers = {};
    begin(2);
    EXPECT_NE(tell_windows(3, slowed(3, percent)), "") << percent;
    EXPECT_EQ(last.ranks, std::vector<int>{3});
  }
}

// The number of a step's collectives does not matter, nor does whether they overlap.
TEST_F(StragglersTest, OneCallAndManyCallsSayTheSame) {
  for (const int count : {1, 2, 16}) {
    stragglers = {};
    calls = count;
    begin(2);
    EXPECT_NE(tell_windows(3, slowed(0, 20)), "") << count;
    EXPECT_EQ(last.ranks, std::vector<int>{0});
  }
}

// Without collectives nobody waits, and a step is as long as the rank needs for it.
TEST_F(StragglersTest, RanksWithoutCollectivesAreComparedByTheirSteps) {
  begin(1);
  std::vector<StepSample> all;
  for (int rank = 0; rank < 4; ++rank)
    all.push_back(
        {.rank = rank, .members = 4, .steps = 50, .step_us = rank == 2 ? 12'000 : 10'000});
  EXPECT_EQ(tell(all) + tell(all), "");
  EXPECT_EQ(tell(all),
            "to 1: rank 2 on node-a is slower than the others: own time 12.0 ms a step, 1.20 x "
            "the median, for 40 s\n");
}

// Each fourth window a checkpoint, or a hog beside another rank: no rank is slow for long.
TEST_F(StragglersTest, APhaseNowAndThenNamesNobody) {
  begin(2);
  std::string said;
  for (int window = 0; window < 60; ++window) {
    if (window % 4 < 2)
      said += tell(samples(slowed((window / 4) % 8, 60)));
    else
      said += tell(samples(slowed(0, 0)));
  }
  EXPECT_EQ(said, "");
}

TEST_F(StragglersTest, ARankThatIsSlowInOneOfTwentyStepsIsNamedByItsMean) {
  begin(2);
  const auto sometimes = [](double ms) {
    return [ms](int rank, int step) { return rank == 5 && step % 20 == 0 ? ms : 40; };
  };
  EXPECT_EQ(tell_windows(10, sometimes(120)), "") << "a tenth in the mean";
  EXPECT_NE(tell_windows(3, sometimes(240)), "") << "a quarter";
  EXPECT_EQ(last.ranks, std::vector<int>{5});
}

TEST_F(StragglersTest, NoiseNamesNobodyInHours) {
  begin(2);
  std::mt19937 random(1);
  std::exponential_distribution<double> noise(0.2);
  const Own noisy = [&](int, int) { return 40 + noise(random); };
  for (int window = 0; window < 1000; ++window) EXPECT_EQ(tell(samples(noisy, 20)), "");
}

// Data of unlike length: another rank is slow in each step.
TEST_F(StragglersTest, UnevenBatchesNameNobody) {
  begin(2);
  std::mt19937 random(2);
  std::uniform_real_distribution<double> length(10, 100);
  const Own uneven = [&](int, int) { return length(random); };
  for (int window = 0; window < 100; ++window) EXPECT_EQ(tell(samples(uneven)), "");
}

TEST_F(StragglersTest, ANodeIsNamedIfAllItsRanksAreSlow) {
  begin(3);
  const Own slow_node = [](int rank, int) { return rank / 4 == 1 ? 52 : 40; };
  EXPECT_EQ(tell_windows(3, slow_node),
            "to 3: all ranks 4-7 on node-b are slower than the others: own time 52.0 ms a step, "
            "1.30 x the median, for 40 s\n");
  stragglers = {};
  begin(2);
  EXPECT_NE(tell_windows(3, slow_node), "") << "half of all ranks";
}

TEST_F(StragglersTest, OfTwoRanksTheSlowerOneIsNamed) {
  begin(1);
  std::vector<StepSample> all = samples(slowed(1, 25));
  all.resize(2);
  for (StepSample& one : all) one.members = 2;
  EXPECT_EQ(tell(all) + tell(all) + tell(all), "");
  EXPECT_NE(tell(all), "") << "the others tell nothing, so a window ends with the next sample";
  EXPECT_EQ(last.ranks, std::vector<int>{1});
}

TEST_F(StragglersTest, ARankThatTellsLateIsJudgedFromThenOn) {
  begin(2);
  missing = {6};
  EXPECT_EQ(tell_windows(5, slowed(6, 50)), "");
  missing = {};
  EXPECT_EQ(tell_windows(2, slowed(6, 50)), "");
  EXPECT_NE(tell_windows(2, slowed(6, 50)), "");
  EXPECT_EQ(last.ranks, std::vector<int>{6});
}

TEST_F(StragglersTest, AMinorityIsNotTheMeasure) {
  begin(2);
  missing = {0, 1, 2, 3};
  EXPECT_EQ(tell_windows(10, slowed(6, 50)), "");
  missing = {0, 1, 2};
  EXPECT_NE(tell_windows(4, slowed(6, 50)), "");
}

// Stages of a pipeline are groups of their own, and do not do the same work.
TEST_F(StragglersTest, GroupsAreJudgedByThemselves) {
  begin(2);
  const Own stages = [](int rank, int) { return rank % 2 == 0 ? 40 : 80; };
  std::string said;
  for (int window = 0; window < 5; ++window) {
    auto all = samples(stages);
    for (StepSample& one : all) one.group = 10 + one.rank % 2, one.members = 4;
    said += tell(all);
  }
  EXPECT_EQ(said, "");
  for (int window = 0; window < 5; ++window) {
    auto all = samples(stages);
    for (StepSample& one : all) one.calls += one.rank % 2;
    said += tell(all);
  }
  EXPECT_EQ(said, "");
}

TEST_F(StragglersTest, AStragglerThatRecoveredMayBeNamedAgain) {
  begin(2);
  EXPECT_NE(tell_windows(3, slowed(6, 25)), "");
  EXPECT_EQ(tell_windows(10, slowed(6, 0)), "");
  EXPECT_EQ(tell_windows(5, slowed(6, 25)), "") << "people know";
  EXPECT_EQ(tell_windows(kFastWindows, slowed(6, 0)), "");
  EXPECT_NE(tell_windows(3, slowed(6, 25)), "");
}

TEST_F(StragglersTest, AWaitForACpuIsTold) {
  begin(1);
  std::string said;
  for (int window = 0; window < 3; ++window) {
    auto all = samples(slowed(1, 25));
    for (StepSample& one : all) one.cpu_wait = one.rank == 1 ? 210 : 10;
    said += tell(all);
  }
  EXPECT_EQ(said,
            "to 1: rank 1 on node-a is slower than the others: own time 50.0 ms a step, 1.25 x the "
            "median, for 40 s; it waited for a CPU 21 % of the time, the others 1 %\n");
}

TEST_F(StragglersTest, AnOlderNodeIsNotTold) {
  deaf = 1;
  begin(2);
  EXPECT_EQ(tell_windows(3, slowed(6, 25)).substr(0, 5), "to 1:");
}

TEST_F(StragglersTest, NothingOutlivesItsRound) {
  begin(2);
  EXPECT_EQ(tell_windows(2, slowed(6, 25)), "");
  round = kStragglerRound + 1;
  EXPECT_EQ(tell_windows(2, slowed(6, 25)), "") << "of a round that does not run";
  round = kStragglerRound;
  membership->failed(1, kStragglerRound, {}, now);
  stragglers.follow(*membership);
  EXPECT_EQ(tell_windows(3, slowed(6, 25)), "");
}

// A node speaks for its own ranks alone, and a sample that cannot be counts for nothing.
TEST_F(StragglersTest, GarbageAndLiesNameNobodyElse) {
  begin(2);
  std::mt19937_64 random(3);
  const auto odd = [&random]() -> std::int64_t {
    constexpr std::int64_t kOdd[] = {0, -1, 1, 40'000, INT64_MAX, INT64_MIN, 3'600'000'000};
    return kOdd[random() % std::size(kOdd)];
  };
  for (int report = 0; report < 20'000; ++report) {
    StepReport told{.round = kStragglerRound};
    for (int rank = -2; rank < 12; ++rank) {
      StepSample sample{.rank = rank, .group = random() % 2};
      sample.members = static_cast<int>(odd());
      sample.steps = static_cast<int>(odd());
      sample.calls = static_cast<int>(odd());
      sample.step_us = odd();
      sample.called_us.resize(random() % 20);
      for (std::int64_t& called : sample.called_us) called = odd();
      sample.cpu_wait = static_cast<int>(odd());
      told.samples.push_back(sample);
    }
    hear(1, told);
    for (const int rank : last.ranks) EXPECT_LT(rank, 4);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
