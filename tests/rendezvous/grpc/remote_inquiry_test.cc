// An inquiry over the network: suspicion, look, evidence and verdict. And peers that know nothing
// of it.
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rendezvous/grpc/call_writer.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/loop_gate.h"
#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

// A node that answers looks, and one of an older version, which does not say so.
NodeSpec make_looking_node(const std::string& id, int workers = 1) {
  NodeSpec spec = make_node(id, 3);
  spec.local_world_size = workers;
  spec.answers_looks = true;
  return spec;
}

std::vector<RankEvidence> evidence_of(const TestNode& node, int workers) {
  const auto& published = std::get<RoundPublished>(node.messages.front());
  std::vector<RankEvidence> evidence;
  for (int i = 0; i < workers; ++i)
    evidence.push_back({.rank = published.seat.first_rank + i,
                        .hostname = "n",
                        .activity = Activity::kIdle,
                        .place = std::string(kMostEvidenceText, 'p'),
                        .groups = std::vector<GroupPosition>(
                            kMostGroups, {.name = "0",
                                          .ranks = std::vector<int>(kMostGroupRanks, 1),
                                          .enqueued = 2,
                                          .completed = 1,
                                          .number = 2,
                                          .operation = "all_reduce"})});
  return evidence;
}

TEST_F(RemoteTest, AnInquiryGoesFromTheSuspicionToTheVerdict) {
  constexpr int kWorkers = 100;  // their evidence is longer than a message
  HostSide side(loop, 2);
  TestNode a;
  TestNode b;
  join(a, to(side.port()), make_looking_node("a", kWorkers));
  join(b, to(side.port()), make_looking_node("b", kWorkers));
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b})) << a.error();
  a.session->suspect(1);
  ASSERT_TRUE(all_hear<Look>({&a, &b})) << a.error();
  const Look look = b.last<Look>();
  EXPECT_EQ(look.round, 1);
  EXPECT_EQ(look.inquiry, a.last<Look>().inquiry);
  const auto begin = steady_clock::now();
  for (TestNode* const node : {&a, &b})
    node->session->give_evidence(look.round, look.inquiry, evidence_of(*node, kWorkers));
  ASSERT_TRUE(all_hear<StandstillVerdict>({&a, &b})) << a.error();
  EXPECT_LT(steady_clock::now() - begin, kInquiryLimit) << "not all evidence came";
  const auto& told = a.last<StandstillVerdict>();
  EXPECT_EQ(told.round, look.round);
  EXPECT_EQ(told.inquiry, look.inquiry);
  EXPECT_EQ(told.verdict, b.last<StandstillVerdict>().verdict);
  // The session is good for the rest.
  b.session->report_failure(1, make_failure("boom"));
  EXPECT_TRUE(all_hear<RoundBroken>({&a, &b})) << b.error();
}

// It would end its session.
TEST_F(RemoteTest, AnOlderNodeIsToldNothingOfAnInquiry) {
  HostSide side(loop, 2);
  TestNode older;
  TestNode node;
  join(older, to(side.port()), make_node("older", 3));
  join(node, to(side.port()), make_looking_node("node"));
  ASSERT_TRUE(all_hear<RoundPublished>({&older, &node}));
  node.session->suspect(1);
  ASSERT_TRUE(all_hear<Look>({&node})) << node.error();
  node.session->give_evidence(1, node.last<Look>().inquiry, evidence_of(node, 1));
  ASSERT_TRUE(all_hear<StandstillVerdict>({&node})) << node.error();
  node.session->report_failure(1, make_failure("boom"));
  ASSERT_TRUE(all_hear<RoundBroken>({&older, &node})) << older.error();
  EXPECT_EQ(older.messages.size(), 2U);
}

// The same of replicas that differ; a report is lost to a host that does not take it.
TEST_F(RemoteTest, ReplicasAreComparedFromTheSumsToTheVerdict) {
  HostSide side(loop, 3);
  TestNode older;
  std::vector<TestNode> nodes(2);
  join(older, to(side.port()), make_node("older", 3));
  NodeSpec spec = make_node("a", 3);
  spec.compares_replicas = true;
  join(nodes[0], to(side.port()), spec);
  spec.node_id = "b";
  join(nodes[1], to(side.port()), spec);
  ASSERT_TRUE(all_hear<RoundPublished>({&older, &nodes[0], &nodes[1]})) << older.error();
  const auto rank_of = [](const TestNode& node) {
    return std::get<RoundPublished>(node.messages.front()).seat.first_rank;
  };
  std::uint64_t sum = 1;
  for (const TestNode& node : nodes)
    node.session->report_replicas({.round = 1, .sums = {{5, 2, 100, ++sum, {rank_of(node)}}}});
  ASSERT_TRUE(all_hear<ReplicaQuestion>({&nodes[0], &nodes[1]})) << nodes[0].error();
  const auto question = nodes[0].last<ReplicaQuestion>();
  EXPECT_EQ(question.set, 5U);
  EXPECT_EQ(question.step, 100);
  for (const TestNode& node : nodes)
    node.session->report_replicas(
        {.round = 1, .question = question.number, .tensors = {{.ranks = {rank_of(node)}}}});
  ASSERT_TRUE(all_hear<ReplicaVerdict>({&nodes[0], &nodes[1]})) << nodes[0].error();
  EXPECT_EQ(nodes[0].last<ReplicaVerdict>().ranks.size(), 2U);
  EXPECT_EQ(older.messages.size(), 1U);
}

// And of stragglers.
TEST_F(RemoteTest, StragglersAreToldToNodesThatHearOfThem) {
  HostSide side(loop, 3);
  TestNode older;
  std::vector<TestNode> nodes(2);
  join(older, to(side.port()), make_node("older", 3));
  NodeSpec spec = make_node("a", 3);
  spec.hears_stragglers = true;
  join(nodes[0], to(side.port()), spec);
  spec.node_id = "b";
  join(nodes[1], to(side.port()), spec);
  ASSERT_TRUE(all_hear<RoundPublished>({&older, &nodes[0], &nodes[1]})) << older.error();
  for (int window = 0; window < 4; ++window) {
    for (const TestNode& node : nodes) {
      const int rank = std::get<RoundPublished>(node.messages.front()).seat.first_rank;
      const std::int64_t step_us = &node == &nodes[0] ? 12'000 : 10'000;
      node.session->report_steps(
          {.round = 1, .samples = {{.rank = rank, .members = 2, .steps = 9, .step_us = step_us}}});
    }
  }
  ASSERT_TRUE(all_hear<StragglerVerdict>({&nodes[0], &nodes[1]})) << nodes[0].error();
  EXPECT_EQ(nodes[1].last<StragglerVerdict>().ranks.size(), 1U);
  EXPECT_EQ(older.messages.size(), 1U);
}

// A host that lets its node in and notes what it says. It does not know the newer messages.
class OlderHost final : public v4::Rendezvous::CallbackService {
 public:
  using SharedGate = std::shared_ptr<LoopGate<OlderHost>>;

  explicit OlderHost(asio::io_context& loop)
      : gate_(std::make_shared<LoopGate<OlderHost>>(loop, *this)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  OlderHost(const OlderHost&) = delete;
  OlderHost& operator=(const OlderHost&) = delete;
  ~OlderHost() override {
    gate_->close();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::ServerBidiReactor<v4::FromNode, v4::ToNode>* OpenSession(
      grpc::CallbackServerContext* /*context*/) override {
    return new Call(gate_);
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(port_); }

  std::vector<v4::FromNode::KindCase> heard;

 private:
  // Deletes itself at the end, as gRPC has it.
  class Call final : public grpc::ServerBidiReactor<v4::FromNode, v4::ToNode> {
   public:
    explicit Call(SharedGate gate) : gate_(std::move(gate)) {
      send(encode(Challenge{std::string(kNonceBytes, 'n')}));
      StartRead(&in_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return perform(writer_.close());
      gate_->post([kind = in_.kind_case()](OlderHost& host) { host.heard.push_back(kind); });
      if (in_.has_proof()) {
        send(encode(HostProof{}));
        send(encode(LeaseGrant{.lease = lease_for(kNoHeartbeats, 1)}));
      }
      StartRead(&in_);
    }
    void OnWriteDone(bool ok) override { perform(writer_.written(ok)); }
    void OnDone() override { delete this; }

   private:
    void send(v4::ToNode message) { perform(writer_.send(std::move(message))); }
    void perform(CallWriter<v4::ToNode>::Step step) {
      if (step.write != nullptr) StartWrite(step.write);
      if (step.end) Finish(grpc::Status::OK);
    }

    const SharedGate gate_;
    v4::FromNode in_;
    CallWriter<v4::ToNode> writer_;
  };

  const SharedGate gate_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RemoteTest, AnOlderHostIsToldNothingOfASuspicion) {
  OlderHost host(loop);
  RemoteOptions options = to(host.port());
  options.token = {};
  TestNode node;
  bool is_admitted = false;
  options.on_admitted = [&](const std::string& /*address*/, std::uint16_t /*port*/) {
    is_admitted = true;
  };
  join(node, options, make_looking_node("a"));
  node.session->suspect(1);  // nothing is known of the host yet
  ASSERT_TRUE(run_until(loop, [&] { return is_admitted; })) << node.error();
  node.session->suspect(1);
  node.session->give_evidence(1, 1, {{.rank = 0}});
  node.session->report_success(1);
  ASSERT_TRUE(run_until(loop, [&] { return host.heard.size() >= 3; })) << node.error();
  EXPECT_EQ(host.heard,
            (std::vector{v4::FromNode::kProof, v4::FromNode::kJoin, v4::FromNode::kSucceeded}));
  node.session.reset();
}

}  // namespace
}  // namespace ddprun::rendezvous
