#include "agent/report/incident_log.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using When = std::chrono::system_clock::time_point;

const rendezvous::RoundBroken kKilled{.round = 1, .cause = {"n1", 3, 1, -9, "rank 3 was killed"}};
const rendezvous::RoundBroken kLost{.round = 2, .cause = {"n1", -1, -1, 0, "node 1 was lost"}};
const rendezvous::RoundBroken kGrows{
    .round = 3, .cause = {"", -1, -1, 0, "the job grows"}, .is_resize = true};

const IncidentLog::Stage& stage_of(const IncidentLog& log, const std::string& name) {
  return *std::ranges::find(log.stages(), name, &IncidentLog::Stage::name);
}

TEST(IncidentLog, CountsByReason) {
  IncidentLog log;
  for (const auto& broken : {kKilled, kLost, kKilled, kGrows}) log.round_broken(broken, {});
  EXPECT_EQ(log.restarts(RestartReason::kWorkerFailed), 2U);
  EXPECT_EQ(log.restarts(RestartReason::kNodeLost), 1U);
  EXPECT_EQ(log.restarts(RestartReason::kResize), 1U);
}

TEST(IncidentLog, KeepsTheNewestReasons) {
  IncidentLog log;
  log.round_broken({.cause = {"n", 0, 0, 1, ""}}, {});
  EXPECT_EQ(log.newest_first().front().text, "a worker failed");
  for (int i = 1; i <= 20; ++i) log.round_broken(kKilled, When(std::chrono::seconds(i)));
  EXPECT_EQ(log.newest_first().size(), IncidentLog::kMostKept);
  EXPECT_EQ(log.newest_first().front().when, When(std::chrono::seconds(20)));
  EXPECT_EQ(log.newest_first().front().text, "rank 3 was killed");
  log.ranks_are_slow("rank 5 is slower", {});
  EXPECT_EQ(log.newest_first().front().text, "rank 5 is slower");
}

TEST(IncidentLog, SumsUpEachStageOnce) {
  IncidentLog log;
  EXPECT_EQ(log.stages().size(), 5U);
  for (const int length : {10, 30}) {
    std::vector<IncidentStage> stages = {{"detected", milliseconds(4)},
                                         {"stopped", milliseconds(length)},
                                         {"re-formed", milliseconds(1)}};
    log.took(stages);
    stages.push_back({"first step", milliseconds(100)});
    log.ended({.stages = stages});
  }
  EXPECT_EQ(stage_of(log, "stopped").count, 2U);
  EXPECT_EQ(stage_of(log, "stopped").sum, milliseconds(40));
  EXPECT_EQ(stage_of(log, "stopped").last, milliseconds(30));
  EXPECT_EQ(stage_of(log, "detected").sum, milliseconds(8));
  EXPECT_EQ(stage_of(log, "first step").count, 2U);
  EXPECT_EQ(stage_of(log, "first line").count, 0U);
}

}  // namespace
}  // namespace ddprun::agent
