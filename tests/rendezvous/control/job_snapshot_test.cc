// The facts that are told of a job: its phase, its nodes, why it waits, and its last incidents.
#include "rendezvous/control/job_snapshot.h"

#include <gtest/gtest.h>

#include "rendezvous/control/operator_verbs.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

const Time kStart = Time{} + std::chrono::hours(1);

class JobSnapshotTest : public testing::Test {
 protected:
  Outcome joins(SessionId session) {
    return noted(membership.joined(session,
                                   {.node_id = "id-" + std::to_string(session),
                                    .hostname = "host-" + std::to_string(session),
                                    .local_world_size = 4,
                                    .rank_is_preferred = true,
                                    .store_port = 1,
                                    .max_restarts = 3},
                                   {"10.0.0.1", ""}, now));
  }
  Outcome noted(Outcome outcome) {
    log.note(outcome, now, (now - kStart) / std::chrono::milliseconds(1));
    return outcome;
  }
  JobSnapshot status() const { return status_of(membership, log, now); }

  Time now = kStart;
  Membership membership{
      {.min_nodes = 2, .max_nodes = 2, .settings = {.join_timeout = seconds(60)}}};
  JobEventLog log;
};

TEST_F(JobSnapshotTest, SaysWhatARoundWaitsFor) {
  joins(1);
  EXPECT_EQ(status().phase, JobPhase::kWaiting);
  EXPECT_EQ(status().waits_for, "1 of 2 nodes are here, 60 s left");
  ASSERT_EQ(status().nodes.size(), 1U);
  EXPECT_EQ(status().nodes[0].state, MemberState::kWaiting);
  EXPECT_EQ(status().nodes[0].node_rank, -1);
}

TEST_F(JobSnapshotTest, ShowsNodesByRankAndSparesLast) {
  for (const SessionId session : {1, 2, 3}) joins(session);
  const JobSnapshot shown = status();
  EXPECT_EQ(shown.phase, JobPhase::kRunning);
  EXPECT_EQ(shown.waits_for, "");
  EXPECT_EQ(shown.round, 1);
  EXPECT_EQ(shown.max_restarts, 3);
  ASSERT_EQ(shown.nodes.size(), 3U);
  EXPECT_EQ(shown.nodes[1].hostname, "host-2");
  EXPECT_EQ(shown.nodes[1].node_rank, 1);
  EXPECT_EQ(shown.nodes[1].workers, 4);
  EXPECT_EQ(shown.nodes[2].state, MemberState::kSpare);
}

TEST_F(JobSnapshotTest, AnIncidentIsToldWithWhenItWasOver) {
  joins(1);
  joins(2);
  now += seconds(10);
  noted(membership.failed(1, 1, {.hostname = "host-1", .rank = 2, .message = "it died"}, now));
  EXPECT_EQ(status().incidents.at(0).reformed_after_ms, -1);
  now += seconds(2);
  joins(1);
  joins(2);
  const IncidentStatus incident = status().incidents.at(0);
  EXPECT_EQ(incident.unix_ms, 10'000);
  EXPECT_EQ(incident.kind, IncidentKind::kFailure);
  EXPECT_EQ(incident.rank, 2);
  EXPECT_EQ(incident.text, "it died");
  EXPECT_EQ(incident.reformed_after_ms, 2'000);
  EXPECT_EQ(status().restarts, 1);
}

TEST_F(JobSnapshotTest, OnlyTheLastIncidentsAreKept) {
  for (int i = 0; i < 40; ++i) {
    noted({.broken = RoundBroken{.round = i}});
    noted({.published = Publication{}});
  }
  EXPECT_EQ(log.incidents().size(), kMaxIncidents);
  EXPECT_EQ(log.incidents().back().round, 39);
}

TEST_F(JobSnapshotTest, RoundsAreToldWithTheirTimes) {
  joins(1);
  joins(2);
  now += seconds(10);
  noted(membership.failed(1, 1, {.hostname = "host-1", .rank = 2, .message = "it died"}, now));
  now += seconds(2);
  joins(1);
  joins(2);
  const std::vector<Period> periods = status().periods;
  ASSERT_EQ(periods.size(), 2U);
  EXPECT_EQ(periods[0].begin_ms, 0);
  EXPECT_EQ(periods[0].end_ms, 10'000);
  EXPECT_EQ(periods[0].workers, 8);
  EXPECT_EQ(periods[1].begin_ms, 12'000);
  EXPECT_TRUE(periods[1].lasts());
}

TEST_F(JobSnapshotTest, TwoEqualVerdictsAreAStandstillUntilAnotherOne) {
  joins(1);
  joins(2);
  const Verdict stuck{
      .kind = VerdictKind::kNothingDone, .ranks = {3}, .sentence = "rank 3 does nothing"};
  log.note(stuck, 1000);
  EXPECT_EQ(status().periods.size(), 1U);
  log.note(stuck, 2000);
  ASSERT_EQ(status().periods.size(), 2U);
  EXPECT_EQ(status().periods[1].text, "rank 3 does nothing");
  EXPECT_EQ(status().periods[1].ranks, (std::vector<int>{3}));
  EXPECT_EQ(status().periods[1].round, 1);
  log.note({.kind = VerdictKind::kBusy, .sentence = "rank 3 computes"}, 5000);
  EXPECT_EQ(status().periods[1].end_ms, 5000);
  log.note(stuck, 6000);
  EXPECT_EQ(status().periods.size(), 2U);
}

TEST_F(JobSnapshotTest, TheEndIsTold) {
  joins(1);
  joins(2);
  noted(*stop(membership, "somebody", now));
  EXPECT_EQ(status().phase, JobPhase::kStopped);
  EXPECT_EQ(status().end, "somebody stopped the job");
  EXPECT_EQ(status().incidents.back().kind, IncidentKind::kEnd);
  EXPECT_TRUE(status().nodes.empty());
}

TEST_F(JobSnapshotTest, AnEndWithoutARoundIsTold) {
  joins(1);
  now += seconds(60);
  noted(membership.tick(now));
  EXPECT_EQ(status().phase, JobPhase::kFailed);
  EXPECT_EQ(status().end, "1 of 2 nodes joined within join_timeout=60 s");
}

}  // namespace
}  // namespace ddprun::rendezvous
