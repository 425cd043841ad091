#include "rendezvous/host/host.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

struct HostTest : testing::Test {
  boost::asio::io_context loop{1};
};

TEST_F(HostTest, RunsAJobOfOneNodeWithoutAnyThread) {
  const auto threads_before = thread_count();
  Host host(loop, {});
  TestNode node;
  node.session = host.open_session(node.handler());
  node.session->join(make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<RoundPublished>(); }));
  EXPECT_EQ(node.last<RoundPublished>().round.master_addr, "127.0.0.1");
  node.session->report_success(1);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<JobEnded>(); }));
  EXPECT_TRUE(node.last<JobEnded>().succeeded);
  EXPECT_EQ(thread_count(), threads_before);
}

TEST_F(HostTest, NeverDeliversFromInsideACall) {
  Host host(loop, {});
  TestNode node;
  node.session = host.open_session(node.handler());
  node.session->join(make_node("a"));
  EXPECT_TRUE(node.messages.empty());
}

TEST_F(HostTest, DeliversAtOnceToADirectSession) {
  Host host(loop, {});
  TestNode node;
  node.session = host.open_direct_session(node.handler(), {"10.0.0.1"});
  node.session->join(make_node("a"));
  ASSERT_TRUE(node.last_is<RoundPublished>());
  EXPECT_EQ(node.last<RoundPublished>().round.master_addr, "10.0.0.1");
}

TEST_F(HostTest, LetsTheStoreBePreparedBeforeAnyNodeHears) {
  Host host(loop, {.min_nodes = 2, .max_nodes = 2});
  TestNode a;
  TestNode b;
  std::vector<std::int64_t> prepared;
  host.before_publish = [&](const Round& round) {
    prepared.push_back(round.number);
    EXPECT_TRUE(a.messages.empty() && b.messages.empty());
  };
  a.session = host.open_direct_session(a.handler(), {});
  b.session = host.open_direct_session(b.handler(), {});
  a.session->join(make_node("a"));
  EXPECT_TRUE(prepared.empty());
  b.session->join(make_node("b"));
  EXPECT_EQ(prepared, std::vector<std::int64_t>{1});
  EXPECT_TRUE(a.last_is<RoundPublished>() && b.last_is<RoundPublished>());
}

// A host that may lose its leadership, with a node in its process and a remote one.
struct RecordingHostTest : HostTest {
  RecordingHostTest() {
    host.record_round = [this](JobRecord record, std::function<void()> recorded) {
      records.push_back(std::move(record));
      confirm = std::move(recorded);
    };
    here.session = host.open_session(here.handler());
    remote.session = host.open_direct_session(remote.handler(), {"10.0.0.2"});
  }
  void join_both() {
    here.session->join(make_node("here", 3));
    remote.session->join(make_node("remote", 3));
  }

  Host host{loop, {.min_nodes = 2, .max_nodes = 2}};
  std::vector<JobRecord> records;
  std::function<void()> confirm;
  // The values that the host's functions use: sessions that end call them.
  std::optional<bool> recorded_as;
  bool is_told = false;
  bool leads = true;
  TestNode here;
  TestNode remote;
};

TEST_F(RecordingHostTest, TellsNobodyOfARoundThatIsNotRecorded) {
  join_both();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(
      records[0],
      (JobRecord{.round = 1, .rules = {.max_restarts = 3}, .others = 1, .leader_has_seat = true}));
  EXPECT_FALSE(run_until(
      loop, [&] { return !here.messages.empty(); }, milliseconds(1)));
  EXPECT_TRUE(remote.messages.empty());
  confirm();
  EXPECT_TRUE(remote.last_is<RoundPublished>());
  EXPECT_TRUE(run_until(loop, [&] { return here.last_is<RoundPublished>(); }));
}

TEST_F(RecordingHostTest, TellsWhatHappenedMeanwhileAfterTheRound) {
  join_both();
  remote.session.reset();
  confirm();
  ASSERT_TRUE(run_until(loop, [&] { return here.messages.size() == 2; }));
  EXPECT_TRUE(std::holds_alternative<RoundPublished>(here.messages[0]));
  EXPECT_TRUE(here.last_is<RoundBroken>());
  remote.session = host.open_direct_session(remote.handler(), {"10.0.0.2"});
  join_both();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].restarts, 1);
  confirm();
  EXPECT_TRUE(run_until(loop, [&] { return here.last_is<RoundPublished>(); }));
}

// It says that it knows of no round, and that is answered: it gets the round once.
TEST_F(RecordingHostTest, WhoComesBackMeanwhileHearsTheRoundOnce) {
  join_both();
  remote.session->resume({.spec = make_node("remote", 3)});
  confirm();
  ASSERT_EQ(remote.messages.size(), 1U);
  EXPECT_TRUE(remote.last_is<RoundPublished>());
}

// It has no workers. If it heard of the round it would start some, beside the next round.
TEST_F(RecordingHostTest, WhoComesBackMeanwhileHearsNothingOfARoundThatBroke) {
  TestNode other;
  Host three{loop, {.min_nodes = 2, .max_nodes = 2}};
  three.record_round = [this](const JobRecord&, std::function<void()> recorded) {
    confirm = std::move(recorded);
  };
  TestNode stays;
  stays.session = three.open_direct_session(stays.handler(), {"10.0.0.2"});
  other.session = three.open_direct_session(other.handler(), {"10.0.0.3"});
  stays.session->join(make_node("stays", 3));
  other.session->join(make_node("other", 3));
  other.session.reset();  // the round breaks before it is told
  stays.session->resume({.spec = make_node("stays", 3)});
  confirm();
  EXPECT_TRUE(stays.messages.empty());
}

TEST_F(RecordingHostTest, EndsItsSessionsWithTheReason) {
  join_both();
  host.end({ErrorCode::kLostLeadership, "another leads"});
  EXPECT_TRUE(remote.lost_for(ErrorCode::kLostLeadership));
  EXPECT_TRUE(run_until(loop, [&] { return here.lost_for(ErrorCode::kLostLeadership); }));
  confirm();  // too late
  EXPECT_EQ(remote.messages.size(), 1U);
  remote.session->report_success(1);
  EXPECT_EQ(here.messages.size(), 1U);
}

TEST_F(RecordingHostTest, TellsNobodyOfAnEndThatIsNotRecorded) {
  host.on_outcome = [this](const Outcome& outcome) { is_told |= outcome.ended.has_value(); };
  host.record_end = [this](bool succeeded, std::function<void()> recorded) {
    recorded_as = succeeded;
    confirm = std::move(recorded);
  };
  join_both();
  confirm();
  here.session->report_success(1);
  remote.session->report_success(1);
  EXPECT_EQ(recorded_as, true);
  EXPECT_TRUE(remote.last_is<RoundPublished>());
  EXPECT_FALSE(is_told) << "the next leader might go on with the job";
  confirm();
  EXPECT_TRUE(remote.last_is<JobEnded>());
  EXPECT_TRUE(is_told);
}

TEST_F(RecordingHostTest, AnEndBeforeTheFirstRoundLeavesNoRecord) {
  host.record_end = [](bool, const std::function<void()>&) {
    FAIL() << "there is nothing to keep";
  };
  remote.session->join(make_node("remote", 3));
  host.obey([](Membership& membership, Time at) { return membership.stopped({}, at); });
  EXPECT_TRUE(remote.last_is<JobEnded>());
}

TEST_F(RecordingHostTest, DecidesNothingOnceItMayNotLead) {
  host.leads = [this] { return leads; };
  join_both();
  confirm();
  leads = false;
  here.session.reset();
  EXPECT_FALSE(remote.last_is<RoundBroken>()) << "another leads, and the round goes on there";
  leads = true;
  remote.session->report_failure(1, make_failure("x"));
  EXPECT_TRUE(remote.last_is<RoundPublished>()) << "what it left undone is not known any more";
}

TEST_F(HostTest, MayEndWhileARoundIsRecorded) {
  std::function<void()> confirm;
  TestNode node;
  {
    Host host(loop, {});
    host.record_round = [&](const JobRecord&, std::function<void()> recorded) {
      confirm = std::move(recorded);
    };
    node.session = host.open_session(node.handler());
    node.session->join(make_node("a"));
    node.session.reset();
  }
  confirm();
  EXPECT_TRUE(node.messages.empty());
}

TEST_F(HostTest, CountsADestroyedSessionAsALostNode) {
  Host host(loop, {.min_nodes = 2, .max_nodes = 2});
  TestNode a;
  TestNode b;
  a.session = host.open_session(a.handler());
  b.session = host.open_session(b.handler());
  a.session->join(make_node("a"));
  b.session->join(make_node("b"));
  b.session.reset();
  ASSERT_TRUE(run_until(loop, [&] { return a.last_is<JobEnded>(); }));
  EXPECT_FALSE(a.last<JobEnded>().succeeded);
  EXPECT_EQ(a.last<JobEnded>().cause.hostname, "host-b");
  EXPECT_TRUE(b.messages.empty());  // what was under way to it when it closed is not delivered
}

TEST_F(HostTest, TakesTheReasonOfANodeThatLeaves) {
  Host host(loop, {.min_nodes = 2, .max_nodes = 2});
  TestNode a;
  TestNode b;
  a.session = host.open_session(a.handler());
  b.session = host.open_session(b.handler());
  a.session->join(make_node("a"));
  b.session->join(make_node("b"));
  b.session->leave(make_failure("SIGTERM"));
  b.session.reset();
  ASSERT_TRUE(run_until(loop, [&] { return a.last_is<JobEnded>(); }));
  EXPECT_EQ(a.last<JobEnded>().cause, make_failure("SIGTERM"));
}

TEST_F(HostTest, EndsAJoinThatTookTooLong) {
  Host host(loop, {.min_nodes = 2, .max_nodes = 2, .settings = {.join_timeout = milliseconds(50)}});
  TestNode node;
  node.session = host.open_session(node.handler());
  const auto start = std::chrono::steady_clock::now();
  node.session->join(make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  EXPECT_EQ(node.error(), "rendezvous: 1 of 2 nodes joined within join_timeout=0.05 s");
}

TEST_F(HostTest, LetsAHandlerDestroyItsSession) {
  Host host(loop, {});
  std::unique_ptr<Session> session;
  bool called = false;
  session = host.open_session([&](const HostMessage&) {
    session.reset();
    called = true;
  });
  session->join(make_node("a"));
  EXPECT_TRUE(run_until(loop, [&] { return called; }));
  EXPECT_FALSE(session);
}

TEST_F(HostTest, AFinishedJobAnswersFromNewMemory) {
  TestNode node;
  auto first = std::make_unique<Host>(loop, RoundPolicy{});
  node.session = first->open_session(node.handler());
  node.session->join(make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<RoundPublished>(); }));
  node.session->report_success(1);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<JobEnded>(); }));
  EXPECT_FALSE(first->is_finished()) << "the node's session is open";
  node.session.reset();
  ASSERT_TRUE(first->is_finished());
  Host host(loop, *first);
  first.reset();
  EXPECT_TRUE(host.is_finished());
  // A node that did not hear the end, and one that comes too late.
  TestNode back;
  back.session = host.open_session(back.handler());
  back.session->resume({.spec = make_node("a"), .round = 1, .seat = 0, .node_count = 1});
  EXPECT_TRUE(run_until(loop, [&] { return back.last_is<JobEnded>(); }));
  TestNode late;
  late.session = host.open_session(late.handler());
  late.session->join(make_node("b"));
  EXPECT_TRUE(run_until(loop, [&] { return late.last_is<SessionLost>(); }));
}

// A node in the host's process and a remote one, of one worker each.
struct InquiringHostTest : HostTest {
  InquiringHostTest() {
    here.session = host.open_session(here.handler());
    remote.session = host.open_direct_session(remote.handler(), {"10.0.0.2"});
    for (TestNode* const node : {&here, &remote}) {
      NodeSpec spec = make_node(node == &here ? "here" : "remote", 3);
      spec.answers_looks = true;
      node->session->join(spec);
    }
    EXPECT_TRUE(run_until(loop, [&] { return here.last_is<RoundPublished>(); }));
  }

  Host host{loop, {.min_nodes = 2, .max_nodes = 2}};
  bool leads = true;
  TestNode here;
  TestNode remote;
};

TEST_F(InquiringHostTest, LetsAllNodesLookAndTellsThemTheVerdict) {
  std::optional<Verdict> noted;
  host.on_verdict = [&noted](const Verdict& verdict) { noted = verdict; };
  remote.session->suspect(1);
  ASSERT_TRUE(remote.last_is<Look>());
  EXPECT_FALSE(noted);
  ASSERT_TRUE(run_until(loop, [&] { return here.last_is<Look>(); }));
  const Look look = here.last<Look>();
  EXPECT_EQ(look.round, 1);
  const int rank = remote.messages.size() == 2 ? 1 : 0;
  here.session->give_evidence(1, look.inquiry, {{.rank = 1 - rank}});
  EXPECT_TRUE(remote.last_is<Look>());
  remote.session->give_evidence(1, look.inquiry, {{.rank = rank}});
  ASSERT_TRUE(remote.last_is<StandstillVerdict>());
  ASSERT_TRUE(run_until(loop, [&] { return here.last_is<StandstillVerdict>(); }));
  const auto& told = here.last<StandstillVerdict>();
  EXPECT_EQ(told.round, 1);
  EXPECT_EQ(told.inquiry, look.inquiry);
  EXPECT_EQ(told.verdict, remote.last<StandstillVerdict>().verdict);
  EXPECT_EQ(noted, told.verdict);
}

TEST_F(InquiringHostTest, ForgetsTheInquiryOfARoundThatBreaks) {
  remote.session->suspect(1);
  remote.session->report_failure(1, make_failure("x"));
  ASSERT_TRUE(remote.last_is<RoundBroken>());
  for (const int rank : {0, 1}) remote.session->give_evidence(1, 1, {{.rank = rank}});
  here.session->give_evidence(1, 1, {{.rank = 0}});
  EXPECT_TRUE(remote.last_is<RoundBroken>());
}

TEST_F(InquiringHostTest, InquiresNoMoreWhenItLeadsNoMore) {
  host.leads = [this] { return leads; };
  leads = false;
  remote.session->suspect(1);
  EXPECT_TRUE(remote.last_is<RoundPublished>()) << "another leads";
}

TEST_F(InquiringHostTest, MayEndWithAnInquiryOpen) {
  remote.session->suspect(1);
  ASSERT_TRUE(remote.last_is<Look>());
  host.end({ErrorCode::kLostLeadership, "another leads"});
  EXPECT_TRUE(remote.lost_for(ErrorCode::kLostLeadership));
  EXPECT_TRUE(run_until(loop, [&] { return here.lost_for(ErrorCode::kLostLeadership); }));
}

TEST_F(HostTest, MayEndWithAMessageAndATimerUnderWay) {
  bool heard = false;
  {
    Host host(loop,
              {.min_nodes = 2, .max_nodes = 2, .settings = {.join_timeout = milliseconds(0)}});
    const auto session = host.open_session([&](const HostMessage&) { heard = true; });
    session->join(make_node("a"));
  }
  loop.run();
  EXPECT_FALSE(heard);
}

}  // namespace
}  // namespace ddprun::rendezvous
