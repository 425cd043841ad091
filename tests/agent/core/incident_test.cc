#include "agent/core/incident.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kBreak = Time{} + std::chrono::hours(1);
const rendezvous::Failure kKilledWorker{
    "n3", 5, 1, -9, "rank 5 (local rank 1, pid 7) on n3 was killed", milliseconds(4)};
const rendezvous::Round kBrokenRound{.number = 3, .world_size = 8};

// One that has stopped after 120 ms, and is formed anew after 150 ms.
IncidentClock recovering(const rendezvous::Failure& cause = kKilledWorker) {
  IncidentClock clock;
  clock.broke(kBreak);
  clock.explained(cause, kBrokenRound);
  clock.broke(kBreak + milliseconds(50));  // the second worker dies of the first one's death
  clock.stopped(kBreak + milliseconds(120));
  clock.formed(kBreak + milliseconds(150));
  return clock;
}

WorkerProgress progress(int line, int step) {
  return {line == 0 ? Time{} : kBreak + milliseconds(line),
          step == 0 ? Time{} : kBreak + milliseconds(step)};
}

TEST(Incident, IsOverWithTheLastWorkersFirstStep) {
  IncidentClock clock = recovering();
  EXPECT_EQ(clock.look_again_at(), kBreak + milliseconds(150) + IncidentClock::kLook);
  const Time later = kBreak + milliseconds(400);
  EXPECT_FALSE(clock.looked({progress(165, 300), progress(170, 0)}, later));
  EXPECT_EQ(clock.look_again_at(), later + IncidentClock::kLook);
  const auto incident = clock.looked({progress(165, 300), progress(170, 320)}, later);
  ASSERT_TRUE(incident.has_value());
  EXPECT_EQ(
      incident_line(*incident),
      "rank 5 on n3: killed by SIGKILL: detected 0.004, stopped 0.120, re-formed 0.030, first "
      "line 0.020, first step 0.150; 0.324 s lost");
  EXPECT_TRUE(incident->recovered);
  EXPECT_EQ(incident->attempt, 2);
  EXPECT_EQ(incident->lost(), milliseconds(324));
  EXPECT_EQ(clock.look_again_at(), Time::max());
  EXPECT_FALSE(clock.cut_short({}));
}

TEST(Incident, TellsItsFirstStagesWhenTheRoundIsFormed) {
  IncidentClock clock;
  EXPECT_TRUE(clock.formed(kBreak).empty()) << "the job begins";
  clock.broke(kBreak);
  clock.explained(kKilledWorker, kBrokenRound);
  clock.stopped(kBreak + milliseconds(210));
  EXPECT_EQ(stages_line(clock.formed(kBreak + milliseconds(241))),
            "detected 0.004 s, stopped 0.210 s, re-formed 0.031 s");
  clock.cut_short({});
  clock.broke(kBreak);
  clock.explained({"n1", -1, -1, 0, "the job grows"}, kBrokenRound);
  clock.stopped(kBreak);
  EXPECT_EQ(stages_line(clock.formed(kBreak)), "stopped 0.000 s, re-formed 0.000 s");
}

TEST(Incident, LeavesOutWhatNobodyKnows) {
  IncidentClock clock = recovering({"n1", -1, -1, 0, "node n1 was lost"});
  EXPECT_FALSE(clock.looked({progress(0, 0)}, kBreak + seconds(20)));
  const auto silent = clock.looked({progress(0, 0)}, kBreak + seconds(31));
  ASSERT_TRUE(silent.has_value());
  EXPECT_EQ(incident_line(*silent),
            "node n1 was lost: stopped 0.120, re-formed 0.030; 0.150 s lost");

  clock = recovering({"n1", 0, 0, 3, ""});
  EXPECT_FALSE(clock.looked({progress(165, 0)}, kBreak + seconds(300)));
  const auto cut = clock.cut_short({progress(165, 0)});
  ASSERT_TRUE(cut.has_value());
  EXPECT_FALSE(cut->recovered);
  EXPECT_EQ(incident_line(*cut),
            "rank 0 on n1: ended with exit code 3: stopped 0.120, re-formed 0.030, first line "
            "0.015; 0.165 s lost");
}

TEST(Incident, NoneWhereNothingFormsAnew) {
  IncidentClock clock;
  clock.formed(kBreak);
  EXPECT_EQ(clock.look_again_at(), Time::max());
  EXPECT_FALSE(clock.cut_short({progress(1, 1)}));
  clock.broke(kBreak);
  clock.explained(kKilledWorker, kBrokenRound);
  EXPECT_FALSE(clock.cut_short({progress(1, 1)})) << "the job ends instead";
}

}  // namespace
}  // namespace ddprun::agent
