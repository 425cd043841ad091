// Many jobs, each from one seed: with one host, and with leaders that follow each other. A failure
// names the seed. DDPRUN_SIM_SEED=N replays one;
// DDPRUN_SIM_COUNT=N runs so many fresh ones, DDPRUN_SIM_FIXED=N so many fixed ones.
#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/sim/preemption_sim.h"
#include "tests/sim/strikes_sim.h"
#include "tests/sim/takeover.h"
#include "tests/support/number_of.h"

namespace ddprun::sim {
namespace {

using support::number_of;

// A sanitizer's build is some twenty times as slow.
constexpr unsigned kFreshSeeds = DDPRUN_SIM_SEEDS;
constexpr unsigned kFixedSeeds = kFreshSeeds / 3;

// Runs the seeds and answers how many jobs went through more than one round.
template <typename Job>
int run_seeds(unsigned first, unsigned count) {
  int restarted = 0;
  for (unsigned seed = first; seed - first < count && !testing::Test::HasFailure(); ++seed) {
    Job job(seed);
    job.run();
    if (job.rounds() > 1) ++restarted;
    EXPECT_FALSE(testing::Test::HasFailure()) << "replay with DDPRUN_SIM_SEED=" << seed;
  }
  return restarted;
}

template <typename Job>
void run_fixed_seeds() {
  const unsigned count = number_of("DDPRUN_SIM_FIXED", kFixedSeeds);
  EXPECT_GT(run_seeds<Job>(1, count), static_cast<int>(count) / 3)
      << "too few faults to test anything";
}

template <typename Job>
void run_fresh_seeds() {
  if (const unsigned seed = number_of("DDPRUN_SIM_SEED", 0U); seed != 0) {
    run_seeds<Job>(seed, 1);
    return;
  }
  run_seeds<Job>(std::random_device()(), number_of("DDPRUN_SIM_COUNT", kFreshSeeds));
}

TEST(Simulation, KeepsItsPromisesUnderFixedSeeds) { run_fixed_seeds<Simulation>(); }
TEST(Simulation, KeepsItsPromisesUnderFreshSeeds) { run_fresh_seeds<Simulation>(); }

TEST(Takeover, KeepsItsPromisesUnderFixedSeeds) { run_fixed_seeds<Takeover>(); }
TEST(Takeover, KeepsItsPromisesUnderFreshSeeds) { run_fresh_seeds<Takeover>(); }

TEST(Preemption, KeepsItsPromisesUnderFixedSeeds) { run_fixed_seeds<PreemptionSim>(); }
TEST(Preemption, KeepsItsPromisesUnderFreshSeeds) { run_fresh_seeds<PreemptionSim>(); }

TEST(StrikesSim, KeepsItsPromisesUnderFixedSeeds) { run_fixed_seeds<StrikesSim>(); }
TEST(StrikesSim, KeepsItsPromisesUnderFreshSeeds) { run_fresh_seeds<StrikesSim>(); }

}  // namespace
}  // namespace ddprun::sim
