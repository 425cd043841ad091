// The jobs that a daemon makes, refuses, gives up and forgets. Virtual time.
#include "daemon/job_table.h"

#include <gtest/gtest.h>

namespace ddprun::daemon {
namespace {

using std::chrono::seconds;

const Time kStart = Time{} + std::chrono::hours(1);
constexpr std::uint64_t kMiB = 1 << 20;

rendezvous::NodeSpec nodes(int min, int max, int unit = 1) {
  return {.min_nodes = min, .max_nodes = max, .settings = {.node_unit = unit}};
}

class JobTableTest : public testing::Test {
 protected:
  JobTable::Admission admit(const std::string& id) {
    const auto admitted = table.admit(id, nodes(1, 2), 0);
    EXPECT_TRUE(admitted.has_value()) << admitted.error().message();
    return *admitted;
  }
  std::string refusal(const std::string& id, const rendezvous::NodeSpec& spec,
                      std::uint64_t memory = 0) {
    const auto admitted = table.admit(id, spec, memory);
    return admitted ? "admitted" : admitted.error().message();
  }
  void end(JobNumber job) {
    table.ended(job, now);
    table.left_alone(job, now);
  }

  Time now = kStart;
  JobTable table{{.jobs = 2,
                  .nodes_per_job = 4,
                  .memory_bytes = 100 * kMiB,
                  .forget_after = seconds(10),
                  .ended_jobs = 2,
                  .alone = seconds(5)}};
};

TEST_F(JobTableTest, TheFirstNodeMakesTheJobAndOthersJoinIt) {
  EXPECT_TRUE(admit("a").is_new);
  EXPECT_FALSE(admit("a").is_new);
  EXPECT_EQ(admit("a").job, 1U);
  EXPECT_EQ(admit("b").job, 2U);
}

TEST_F(JobTableTest, EachLimitIsNamed) {
  admit("a");
  admit("b");
  EXPECT_EQ(refusal("c", nodes(1, 1)), "rendezvous: 2 jobs are here already (--max-jobs=2)");
  EXPECT_EQ(refusal("a", nodes(1, 5)),
            "rendezvous: --nnodes=1:5 is more than this ddprund allows (--max-nodes-per-job=4)");
  table.set_members(1, 4);
  EXPECT_EQ(refusal("a", nodes(1, 2)),
            "rendezvous: job a has 4 nodes already (--max-nodes-per-job=4)");
  end(2);
  EXPECT_EQ(refusal("c", nodes(1, 1), 101 * kMiB),
            "rendezvous: ddprund uses 101 MiB of memory already (--max-memory=100)");
  EXPECT_EQ(refusal("c", nodes(1, 1), 100 * kMiB), "admitted");
}

TEST_F(JobTableTest, WhatNoJobCanBeIsRefused) {
  EXPECT_EQ(refusal("a", nodes(0, 0)), "rendezvous: no job can have 0 to 0 nodes in units of 1");
  EXPECT_EQ(refusal("a", nodes(3, 2)), "rendezvous: no job can have 3 to 2 nodes in units of 1");
  EXPECT_EQ(refusal("a", nodes(2, 3, 2)), "rendezvous: no job can have 2 to 3 nodes in units of 2");
  EXPECT_EQ(refusal("", nodes(1, 1)), "rendezvous: an rdzv_id of 0 bytes: expected 1 to 255");
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(JobTableTest, AnIdIsUsedAgainAfterItsJobsEnd) {
  const JobNumber first = admit("a").job;
  table.ended(first, now);
  const auto second = admit("a");
  EXPECT_TRUE(second.is_new);
  EXPECT_EQ(table.shown(), std::vector<JobNumber>{second.job});
  // The first one has nodes that read its end.
  EXPECT_TRUE(table.due(now).forget.empty());
  table.left_alone(first, now);
  EXPECT_EQ(table.look_again_at(), Time::min());
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{first});
  EXPECT_EQ(table.find("a"), second.job);
}

TEST_F(JobTableTest, AJobMayOutlastTheOneThatReplacedIt) {
  const JobNumber first = admit("a").job;
  table.ended(first, now);  // a node of it is leaving
  end(admit("a").job);
  now += seconds(10);
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{2});
  EXPECT_EQ(table.look_again_at(), Time::max());
  table.left_alone(first, now);
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{1});
}

TEST_F(JobTableTest, AnEndedJobIsForgottenInTime) {
  end(admit("a").job);
  EXPECT_EQ(table.look_again_at(), now + seconds(10));
  now += seconds(9);
  EXPECT_TRUE(table.due(now).forget.empty());
  now += seconds(1);
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{1});
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.look_again_at(), Time::max());
}

TEST_F(JobTableTest, OnlySoManyEndedJobsAreKept) {
  for (const char* id : {"a", "b", "c"}) end(admit(id).job);
  EXPECT_EQ(table.look_again_at(), Time::min());
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{1});
  EXPECT_EQ(table.shown(), (std::vector<JobNumber>{2, 3}));
}

TEST_F(JobTableTest, AJobWithoutNodesIsGivenUp) {
  const JobNumber job = admit("a").job;
  table.left_alone(job, now);
  EXPECT_EQ(table.look_again_at(), now + seconds(5));
  admit("a");  // one came in time
  EXPECT_EQ(table.look_again_at(), Time::max());
  table.left_alone(job, now);
  now += seconds(5);
  EXPECT_EQ(table.due(now).give_up, std::vector<JobNumber>{job});
  table.ended(job, now);
  EXPECT_TRUE(table.due(now).give_up.empty());
  EXPECT_EQ(table.look_again_at(), now + seconds(10));
}

TEST_F(JobTableTest, AnInheritedJobIsRefusedByNoLimit) {
  table.inherit("a");
  admit("b");
  EXPECT_EQ(refusal("c", nodes(1, 1)), "rendezvous: 2 jobs are here already (--max-jobs=2)")
      << "its place is kept";
  const auto made = table.admit("a", nodes(1, 5), 101 * kMiB, true);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(made->is_new);
  EXPECT_EQ(refusal("c", nodes(1, 1)), "rendezvous: 2 jobs are here already (--max-jobs=2)")
      << "it is counted once";
  // Newcomers were faster than a node whose workers run.
  table.set_members(made->job, 4);
  EXPECT_EQ(refusal("a", nodes(1, 4)),
            "rendezvous: job a has 4 nodes already (--max-nodes-per-job=4)");
  EXPECT_TRUE(table.admit("a", nodes(1, 5), 0, true));
  // The next job of the id is one like all others.
  end(made->job);
  EXPECT_FALSE(table.admit("a", nodes(1, 5), 0, true));
}

TEST_F(JobTableTest, AnInheritedJobThatNobodyComesBackToGivesItsPlaceUp) {
  table.inherit("a");
  table.inherit("b");
  EXPECT_EQ(refusal("c", nodes(1, 1)), "rendezvous: 2 jobs are here already (--max-jobs=2)");
  table.forget_inherited();
  EXPECT_EQ(refusal("c", nodes(1, 1)), "admitted");
  table.inherit("d");
  table.clear();
  admit("e");
  admit("f");
}

TEST_F(JobTableTest, NewMemoryChangesNothing) {
  end(admit("a").job);
  const JobNumber last = admit("a").job;
  table.inherit("b");
  table.compact();
  EXPECT_EQ(table.size(), 2U);
  EXPECT_EQ(table.find("a"), last);
  EXPECT_EQ(refusal("c", nodes(1, 1)), "rendezvous: 2 jobs are here already (--max-jobs=2)");
  EXPECT_EQ(table.due(now).forget, std::vector<JobNumber>{1}) << "another has its id";
  EXPECT_EQ(table.size(), 1U);
}

TEST_F(JobTableTest, ManyJobsLeaveNothingBehind) {
  for (int i = 0; i < 10'000; ++i) {
    end(admit(std::to_string(i)).job);
    table.due(now);
  }
  EXPECT_EQ(table.size(), 2U);
}

}  // namespace
}  // namespace ddprun::daemon
