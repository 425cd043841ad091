// The facts that stay of a job that has ended, and for whom.
#include "rendezvous/control/job_control.h"

#include <gtest/gtest.h>

#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

TEST(JobControl, AFinishedJobIsShownFromNewMemory) {
  boost::asio::io_context loop(1);
  auto first = std::make_unique<Host>(loop, RoundPolicy{});
  auto before = std::make_unique<JobControl>(*first, "job");
  TestNode node;
  node.session = first->open_session(node.handler());
  node.session->join(make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<RoundPublished>(); }));
  node.session->report_failure(1, make_failure("a worker failed"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<JobEnded>(); }));
  node.session.reset();
  const JobSnapshot shown = before->status();

  Host host(loop, *first);
  JobControl control(host, *before);
  before.reset();
  first.reset();
  EXPECT_EQ(control.status(), shown);
  EXPECT_EQ(control.status().phase, JobPhase::kFailed);
  ASSERT_FALSE(control.status().incidents.empty());
  EXPECT_EQ(control.status().incidents.back().text, "a worker failed");
  std::optional<JobControl::End> end;
  control.wait([&](const JobControl::End& one) { end = one; });
  ASSERT_TRUE(end) << "nobody waits for what has happened";
  EXPECT_FALSE(end->succeeded);
  EXPECT_EQ(control.stop("").error().code(), ErrorCode::kRejected);
}

TEST(JobControl, NotesTheVerdictsThatNodesAreTold) {
  boost::asio::io_context loop(1);
  Host host(loop, RoundPolicy{});
  const JobControl control(host, "job");
  for (int i = 0; i < 2; ++i)
    host.on_verdict(
        {.kind = VerdictKind::kNothingDone, .ranks = {0}, .sentence = "rank 0 does nothing"});
  ASSERT_EQ(control.status().periods.size(), 1U);
  EXPECT_EQ(control.status().periods[0].text, "rank 0 does nothing");
}

}  // namespace
}  // namespace ddprun::rendezvous
