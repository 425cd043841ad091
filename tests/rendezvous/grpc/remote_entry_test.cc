// The callers that a host lets in, and those that it does not.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/client_call.h"
#include "rendezvous/trust/node_authenticator.h"
#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

// A client that sends what an HTTP/2 client sends first, and no more.
struct UnauthenticatedPeer {
  UnauthenticatedPeer(asio::io_context& loop, std::uint16_t port) : socket(loop) {
    socket.connect({boost::asio::ip::address_v4::loopback(), port});
    asio::write(socket, asio::buffer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
    read();
  }
  UnauthenticatedPeer(const UnauthenticatedPeer&) = delete;
  UnauthenticatedPeer& operator=(const UnauthenticatedPeer&) = delete;
  ~UnauthenticatedPeer() {
    boost::system::error_code ignored;
    socket.close(ignored);
  }
  void read() {
    socket.async_read_some(asio::buffer(bytes),
                           [this](boost::system::error_code failed, std::size_t) {
                             if (failed == asio::error::operation_aborted) return;
                             if (failed) {
                               closed = true;
                             } else {
                               greeted = true;
                               read();
                             }
                           });
  }

  tcp::socket socket;
  std::array<char, 256> bytes{};
  bool greeted = false;  // the host's first frame came
  bool closed = false;
};

// Calls as a node does. It answers the host's challenge with `proof`, or not at all if there is
// none.
struct Caller {
  using Call = ClientCall<Caller>;

  Caller(asio::io_context& loop, std::uint16_t port, std::optional<Proof> its_proof)
      : proof(std::move(its_proof)), gate(std::make_shared<LoopGate<Caller>>(loop, *this)) {
    call->start(*stub_to(port), "none", make_nonce());
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    gate->close();
    call->cut();
    call->wait_done(kTestLimit);
  }
  v4::Rendezvous::Stub* stub_to(std::uint16_t port) {
    stub = v4::Rendezvous::NewStub(make_channel("127.0.0.1", port, {}));
    return stub.get();
  }
  void on_message(const std::shared_ptr<Call>& /*call*/, const Result<DownMessage>& message) {
    ASSERT_TRUE(message && std::holds_alternative<Challenge>(*message));
    challenge = std::get<Challenge>(*message);
    if (proof) call->send(encode(*proof));
  }
  void finished(const std::shared_ptr<Call>& /*call*/, const grpc::Status& status) {
    ended = status;
  }

  const std::optional<Proof> proof;
  const std::shared_ptr<LoopGate<Caller>> gate;
  std::unique_ptr<v4::Rendezvous::Stub> stub;
  const std::shared_ptr<Call> call = std::make_shared<Call>(gate);
  std::optional<Challenge> challenge;
  std::optional<grpc::Status> ended;
};

TEST_F(RemoteTest, CutsACallerThatNeverAnswersTheChallenge) {
  constexpr std::chrono::seconds kLimit{3};
  HostSide side(loop, 1, {.token = {"secret"}, .keep_alive = kNoHeartbeats, .proof_limit = kLimit});
  testing::internal::CaptureStderr();
  const auto begin = steady_clock::now();
  Caller caller(loop, side.port(), std::nullopt);
  ASSERT_TRUE(run_until(loop, [&] { return caller.ended.has_value(); }));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(caller.ended->ok());
  ASSERT_TRUE(caller.challenge);
  EXPECT_GE(steady_clock::now() - begin, kLimit);
  EXPECT_NE(log.find("it did not prove in time that it knows the job's token"), std::string::npos)
      << log;
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

TEST_F(RemoteTest, RefusesACallerWithABadProof) {
  HostSide side(loop, 1);
  for (const Proof& proof : {Proof{}, Proof{"secret"}, Proof{std::string(kProofBytes, 'x')}}) {
    Caller caller(loop, side.port(), proof);
    ASSERT_TRUE(run_until(loop, [&] { return caller.ended.has_value(); }));
    EXPECT_EQ(caller.ended->error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(caller.ended->error_message(), "the job's token is missing or wrong");
  }
}

TEST_F(RemoteTest, RefusesAWrongOrMissingToken) {
  HostSide side(loop, 1);
  for (const char* token : {"", "wrong!", "secret2", "secre"}) {
    RemoteOptions options = to(side.port());
    options.token.key = token;
    TestNode node;
    join(node, options, make_node("a"));
    ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); })) << token;
    EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
    EXPECT_EQ(node.error(),
              "rendezvous at 127.0.0.1:" + std::to_string(side.port()) +
                  ": refused: the job's token is missing or wrong, or the host is an impostor");
  }
}

TEST_F(RemoteTest, RefusesANodeOfAnotherJob) {
  HostSide side(loop, 1, {.token = {"secret"}, .rdzv_id = "job one"});
  RemoteOptions options = to(side.port());
  options.rdzv_id = "job \xE9 two";
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  EXPECT_NE(node.error().find("another job than the one with rdzv_id=job \xE9 two"),
            std::string::npos)
      << node.error();
  options.rdzv_id = "job one";
  TestNode right;
  join(right, options, make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&right})) << right.error();
}

// The user set no token.
TEST_F(RemoteTest, TellsANodeOfAnotherJobWhatIsWrongWithoutAToken) {
  HostSide side(loop, 1, {.token = {}, .rdzv_id = "mine"});
  RemoteOptions options = to(side.port());
  options.rdzv_id = "theirs";
  options.token = {};
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  // The error does not name the id that the host serves.
  EXPECT_EQ(node.error(), "rendezvous at 127.0.0.1:" + std::to_string(side.port()) +
                              ": refused: it serves another job than the one with rdzv_id=theirs");
}

TEST_F(RemoteTest, TakesAnyBytesAsIdAndToken) {
  const std::string id =
      "\xC3\xBC"
      "bung\n\x01 " +
      std::string(1, '\0') + "\xFF";
  const std::string longest(4096, '\xFE');
  for (const std::string& token : {id, longest}) {
    HostSide side(loop, 1, {.token = {token}, .rdzv_id = id});
    RemoteOptions options = to(side.port());
    options.token.key = token;
    options.rdzv_id = id;
    TestNode node;
    join(node, options, make_node("a"));
    EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
    options.token.key = token.substr(1);
    TestNode wrong;
    join(wrong, options, make_node("b"));
    ASSERT_TRUE(run_until(loop, [&] { return wrong.last_is<SessionLost>(); }));
    EXPECT_TRUE(wrong.lost_for(ErrorCode::kRejected)) << wrong.error();
  }
}

TEST_F(RemoteTest, RefusesOptionsThatNoHostCouldRead) {
  RemoteOptions options = to(1);
  options.token.key = std::string(4097, 'x');
  TestNode node;
  open_session(node, options);
  EXPECT_TRUE(node.messages.empty());  // it is posted, as all messages are
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kInvalidArgument));
  options = to(1);
  options.rdzv_id = std::string(256, 'x');
  open_session(node, options);
  EXPECT_TRUE(run_until(loop, [&] { return node.messages.size() == 2; }));
  EXPECT_NE(node.error().find("rdzv_id has 256 bytes"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, SurvivesClientsThatSendGarbage) {
  HostSide side(loop, 1);
  std::vector<tcp::socket> peers;
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(4096, '\xFF'),
        std::string("P"), std::string("POST / HTTP/1.1\r\n\r\n"), std::string()}) {
    peers.emplace_back(loop);
    peers.back().connect({boost::asio::ip::address_v4::loopback(), side.port()});
    asio::write(peers.back(), asio::buffer(bytes));
  }
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

// A host of the same job's id that does not know its token.
TEST_F(RemoteTest, JoinsNoImpostor) {
  HostSide side(loop, 1, {.token = {"a guess"}});
  TestNode node;
  testing::internal::CaptureStderr();
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  EXPECT_FALSE(node.last<SessionLost>().was_reached);
  EXPECT_NE(node.error().find("the host is an impostor"), std::string::npos) << node.error();
  EXPECT_EQ(node.messages.size(), 1U);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the job's token is missing or wrong"), std::string::npos) << log;
}

// Without a token whoever knows the id joins. It takes no seat that somebody has, and breaks no
// round.
TEST_F(RemoteTest, AnUnauthenticatedPeersJoinIsNoHarmToARoundOfAFixedSize) {
  HostSide side(loop, 2, {.token = {}, .keep_alive = kNoHeartbeats, .resumes = true});
  RemoteOptions options = to(side.port());
  options.token = {};
  TestNode a;
  TestNode b;
  NodeSpec first = make_node("a");
  NodeSpec second = make_node("b");
  first.node_rank = 0;
  second.node_rank = 1;
  join(a, options, first);
  join(b, options, second);
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b})) << a.error() << b.error();
  TestNode taker;
  join(taker, options, second);  // the id and the rank of another
  TestNode ranked;
  NodeSpec claims = make_node("claims");
  claims.node_rank = 0;
  join(ranked, options, claims);
  TestNode sized;
  NodeSpec other_size = make_node("sized");
  other_size.min_nodes = other_size.max_nodes = 3;
  join(sized, options, other_size);
  ASSERT_TRUE(all_hear<SessionLost>({&taker, &ranked, &sized}));
  TestNode returned;
  open_session(returned, options);
  returned.session->resume({.spec = make_node("returns"),
                            .round = 1,
                            .seat = 1,
                            .node_count = 2,
                            .state = NodeState::kRunning});
  TestNode spare;
  join(spare, options, make_node("spare"));
  ASSERT_TRUE(run_until(loop, [&] { return side.host->membership().members().size() >= 4; }));
  for (TestNode* one : {&returned, &spare}) {
    one->session->report_failure(1, make_failure("all is lost"));
    one->session->report_success(1);
    one->session->leave(make_failure("and I am gone"));
  }
  returned.session.reset();
  spare.session.reset();
  a.session->report_success(1);
  b.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&a, &b}));
  for (const TestNode* one : {&a, &b}) {
    EXPECT_TRUE(one->last<JobEnded>().succeeded);
    EXPECT_EQ(one->messages.size(), 2U) << "a round and its end";
  }
  EXPECT_EQ(spare.messages.size(), 0U) << "it learned nothing";
}

// The host proves nothing to a caller that has not proved that it knows the token. It cannot be
// asked for proofs against which tokens are tried.
TEST_F(RemoteTest, TheHostProvesNothingToACallerWithoutTheToken) {
  HostSide side(loop, 1);
  Relay relay(loop, side.port());
  Caller caller(loop, relay.port(), Proof{std::string(kProofBytes, 'x')});
  ASSERT_TRUE(run_until(loop, [&] { return caller.ended.has_value(); }));
  ASSERT_TRUE(caller.challenge);
  EXPECT_EQ(encode(*caller.challenge).ByteSizeLong(), kNonceBytes + 4)
      << "a nonce and nothing else";
}

TEST_F(RemoteTest, TheTokenNeverTravels) {
  HostSide side(loop, 1);
  Relay relay(loop, side.port());
  TestNode node;
  join(node, to(relay.port()), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
  for (const std::string* heard : {&relay.from_node, &relay.from_host}) {
    EXPECT_GT(heard->size(), 100U);
    EXPECT_EQ(heard->find("secret"), std::string::npos);
  }
  EXPECT_NE(relay.from_node.find("host-a"), std::string::npos);  // the capture is one of clear text
}

// A node's bytes, recorded by an eavesdropper, let nobody in again.
TEST_F(RemoteTest, AReplayedHandshakeIsRefused) {
  HostSide side(loop, 1);
  Relay relay(loop, side.port());
  TestNode node;
  join(node, to(relay.port()), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
  testing::internal::CaptureStderr();
  tcp::socket replayed(loop);
  replayed.connect({boost::asio::ip::address_v4::loopback(), side.port()});
  asio::write(replayed, asio::buffer(relay.from_node));
  std::string answers;
  std::array<char, 256> bytes{};
  std::function<void()> read = [&] {
    replayed.async_read_some(asio::buffer(bytes),
                             [&](boost::system::error_code failed, std::size_t count) {
                               answers.append(bytes.data(), count);
                               if (!failed) read();
                             });
  };
  read();
  // The status comes last, in clear text.
  EXPECT_TRUE(run_until(
      loop, [&] { return answers.find("token is missing or wrong") != std::string::npos; }));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the job's token is missing or wrong"), std::string::npos) << log;
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node})) << node.error();
}

TEST_F(RemoteTest, WarnsOnceOfManyRefusals) {
  HostSide side(loop, 1);
  RemoteOptions options = to(side.port());
  options.token.key = "wrong";
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    TestNode node;
    join(node, options, make_node("a"));
    EXPECT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string warning = "rendezvous: refused a connection from 127.0.0.1: the job's token";
  const auto first = log.find(warning);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(warning, first + 1), std::string::npos) << log;
}

TEST_F(RemoteTest, CutsTheOldestOfTooManyConnectionsButNoNode) {
  HostSide side(loop, 1, {.token = {"secret"}, .max_unauthenticated = 3});
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
  std::vector<std::unique_ptr<UnauthenticatedPeer>> peers;
  for (int i = 0; i < 3; ++i) {
    peers.push_back(std::make_unique<UnauthenticatedPeer>(loop, side.port()));
    ASSERT_TRUE(run_until(loop, [&] { return peers.back()->greeted; }));
  }
  EXPECT_FALSE(peers[0]->closed);
  UnauthenticatedPeer one_more(loop, side.port());
  ASSERT_TRUE(run_until(loop, [&] { return peers[0]->closed && one_more.greeted; }));
  EXPECT_FALSE(peers[1]->closed || peers[2]->closed || one_more.closed);
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node})) << node.error();
}

}  // namespace
}  // namespace ddprun::rendezvous
