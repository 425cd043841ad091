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

}  // namespace
}  // namespace ddprun::rendezvous
