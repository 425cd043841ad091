#include "rendezvous/grpc/codec.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace ddprun::rendezvous {
namespace {

NodeSpec spec() {
  return {.node_id = "n1",
          .hostname = "host",
          .local_world_size = 8,
          .role = "trainer",
          .node_rank = 3,
          .rank_is_preferred = true,
          .store_address = "10.0.0.1",
          .store_port = 29500,
          .worker_store_port = 40001,
          .max_restarts = 2,
          .most_without_progress = 3,
          .min_nodes = 2,
          .max_nodes = 4,
          .answers_looks = true,
          .compares_replicas = true,
          .hears_stragglers = true,
          .strike_rules = {.most = 3, .half_life = milliseconds(60'000)},
          .strikes = "a strikes=1 pauses=0 left=0\n",
          .settings = {.join_timeout = milliseconds(5'000),
                       .last_call = milliseconds(4'000),
                       .resize_wait = milliseconds(0),
                       .resize_interval = milliseconds(2'000),
                       .node_unit = 2}};
}

Failure failure() {
  return {.hostname = "host",
          .rank = 5,
          .local_rank = 1,
          .exit_code = -9,
          .message = "killed",
          .noticed_after = std::chrono::microseconds(4321),
          .words = "ValueError: bad",
          .step = 12,
          .is_step_of_run = true,
          .is_hang = true,
          .ends_job = true,
          .fault = NodeFault::kExitCode};
}

RoundPublished published() {
  return {.round = {.number = 5,
                    .restart_count = 1,
                    .world_size = 24,
                    .node_count = 3,
                    .master_addr = "10.0.0.1",
                    .master_port = 29500,
                    .master_hostname = "n0",
                    .strikes = "b strikes=2 pauses=0 left=0\n"},
          .seat = {.node_rank = 2, .first_rank = 16, .role_first_rank = 8, .role_world_size = 16}};
}

// Through the bytes, as on the wire.
Result<NodeMessage> travel(const NodeMessage& said) {
  v4::FromNode message;
  EXPECT_TRUE(message.ParseFromString(encode(said).SerializeAsString()));
  return decode(message);
}
Result<DownMessage> travel(const v4::ToNode& said) {
  v4::ToNode message;
  EXPECT_TRUE(message.ParseFromString(said.SerializeAsString()));
  return decode(message);
}
// Returns the node's form of a message of the host.
template <typename Kind>
Kind received(const HostMessage& said) {
  return std::get<Kind>(std::get<HostMessage>(*travel(encode(said))));
}

TEST(Codec, CarriesEveryMessageOfANode) {
  EXPECT_EQ(std::get<NodeSpec>(*travel(NodeMessage(spec()))), spec());
  const auto failed = std::get<WorkerFailed>(*travel(NodeMessage(WorkerFailed{7, failure()})));
  EXPECT_EQ(failed.round, 7);
  EXPECT_EQ(failed.failure, failure());
  EXPECT_EQ(std::get<NodeSucceeded>(*travel(NodeMessage(NodeSucceeded{8}))).round, 8);
  EXPECT_EQ(std::get<Leave>(*travel(NodeMessage(Leave{failure()}))).reason, failure());
  EXPECT_TRUE(std::holds_alternative<Gone>(*travel(NodeMessage(Gone{}))));
  const Heartbeat heartbeat{std::chrono::milliseconds(9)};
  EXPECT_EQ(std::get<Heartbeat>(*travel(NodeMessage(heartbeat))).stamp, heartbeat.stamp);
}

TEST(Codec, CarriesWhatANodeSaysThatComesBack) {
  for (const NodeState state :
       {NodeState::kJoining, NodeState::kRunning, NodeState::kSucceeded, NodeState::kStopping}) {
    const ResumeRequest resumed{.spec = spec(),
                                .connection = 3,
                                .round = 7,
                                .seat = 2,
                                .node_count = 3,
                                .restarts = 4,
                                .state = state,
                                .cause = failure(),
                                .is_resize = true};
    EXPECT_EQ(std::get<ResumeRequest>(*travel(NodeMessage(resumed))), resumed);
  }
  auto message = encode(NodeMessage(ResumeRequest{.spec = spec()}));
  message.mutable_resumed()->set_state(4);
  EXPECT_EQ(decode(message).error().code(), ErrorCode::kProtocol);
  message.mutable_resumed()->set_state(1);
  message.mutable_resumed()->set_round(-1);
  EXPECT_EQ(decode(message).error().code(), ErrorCode::kProtocol);
}

TEST(Codec, CarriesDefaultsAndMinusOne) {
  NodeSpec plain;
  plain.node_id = "x";
  EXPECT_EQ(std::get<NodeSpec>(*travel(NodeMessage(plain))), plain);
  auto without = encode(NodeMessage(spec()));
  without.mutable_join()->clear_settings();
  const auto read = decode(without);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(std::get<NodeSpec>(*read).settings, RoundSettings());
}

TEST(Codec, CarriesEveryMessageOfTheHost) {
  const auto got = received<RoundPublished>(published());
  EXPECT_EQ(got.round, published().round);
  EXPECT_EQ(got.seat, published().seat);
  const auto broken = received<RoundBroken>(RoundBroken{4, failure(), true});
  EXPECT_EQ(broken.round, 4);
  EXPECT_EQ(broken.cause, failure());
  EXPECT_TRUE(broken.is_resize);
  const auto ended = received<JobEnded>(JobEnded{false, failure()});
  EXPECT_FALSE(ended.succeeded);
  EXPECT_EQ(ended.cause, failure());
  EXPECT_TRUE(received<JobEnded>(JobEnded{true, {}}).succeeded);
  EXPECT_EQ(received<JobEnded>(JobEnded{.strikes = "c"}).strikes, "c");
  EXPECT_FALSE(ended.no_progress);
  const NoProgress why{.attempts = 3, .sentence = "alike", .last = {{4, failure()}, {5, {}}}};
  EXPECT_EQ(received<JobEnded>(JobEnded{.cause = failure(), .no_progress = why}).no_progress, why);
  const Error error(ErrorCode::kRejected, "no");
  EXPECT_EQ(received<SessionLost>(SessionLost{error}).error, error);
}

TEST(Codec, CarriesLeases) {
  const LeaseGrant grant{.stamp = std::chrono::milliseconds(5),
                         .lease = {.length = std::chrono::milliseconds(3500),
                                   .heartbeat_every = std::chrono::milliseconds(250)},
                         .wait_status = WaitStatus{.awaits = Await::kRestartPause,
                                                   .have = 1,
                                                   .min_nodes = 2,
                                                   .max_nodes = 3,
                                                   .ends_in = std::chrono::milliseconds(9),
                                                   .missing = "0"},
                         .may_return = true,
                         .host_returns = true,
                         .takes_evidence = true,
                         .takes_replicas = true};
  const auto got = std::get<LeaseGrant>(*travel(encode(grant)));
  EXPECT_EQ(got.wait_status, grant.wait_status);
  EXPECT_EQ(got.stamp, grant.stamp);
  EXPECT_EQ(got.lease, grant.lease);
  EXPECT_TRUE(got.may_return && got.host_returns && got.takes_evidence && got.takes_replicas);
}

TEST(Codec, CarriesWhatIsAwaited) {
  const auto carried = [](Await awaits) {
    const LeaseGrant grant{.lease = rendezvous::lease_for({}, 1),
                           .wait_status = WaitStatus{.awaits = awaits}};
    return std::get<LeaseGrant>(*travel(encode(grant))).wait_status->awaits;
  };
  for (const Await awaits : {Await::kNodes, Await::kLastCall, Await::kOldWorkers,
                             Await::kRestartPause, Await::kSeat, Await::kResize})
    EXPECT_EQ(carried(awaits), awaits);
  EXPECT_EQ(carried(Await{static_cast<int>(Await::kResize) + 1}), Await::kNodes) << "a newer host";
}

TEST(Codec, CarriesTextThatIsNoUtf8) {
  Failure odd = failure();
  odd.message = "latin-1 \xE9 and \xFF";
  EXPECT_EQ(std::get<Leave>(*travel(NodeMessage(Leave{odd}))).reason, odd);
}

TEST(Codec, CarriesAttemptsInOneMessage) {
  Failure longest = failure();
  longest.hostname = longest.words = std::string(kMaxNameBytes, 'n');
  longest.message = std::string(kMaxTextBytes, 'm');
  NoProgress why{.attempts = 9, .sentence = longest.message, .last = {}};
  why.last.resize(kMostShownAttempts, {.round = 1, .cause = longest});
  const v4::ToNode message = encode(HostMessage(JobEnded{.cause = longest, .no_progress = why}));
  EXPECT_LE(message.ByteSizeLong(), static_cast<std::size_t>(kMaxDownBytes));
  EXPECT_TRUE(decode(message));
  why.last.resize(kMostShownAttempts + 1);
  EXPECT_EQ(decode(encode(HostMessage(JobEnded{.no_progress = why}))).error().code(),
            ErrorCode::kLimit);
}

TEST(Codec, CutsLongTextsBetweenCharacters) {
  Failure wordy = failure();
  wordy.message = std::string(kMaxTextBytes - 1, 'a') + "\u00e9\u00e9";
  const auto leave = std::get<Leave>(*travel(NodeMessage(Leave{wordy})));
  EXPECT_EQ(leave.reason.message, std::string(kMaxTextBytes - 1, 'a'));
}

TEST(Codec, RefusesWhatIsTooLong) {
  NodeSpec long_role = spec();
  long_role.role = std::string(kMaxNameBytes, 'r');
  EXPECT_TRUE(travel(NodeMessage(long_role)));
  long_role.role += 'r';
  EXPECT_EQ(travel(NodeMessage(long_role)).error().code(), ErrorCode::kLimit);
  v4::FromNode leave;
  leave.mutable_leave()->mutable_reason()->set_message(std::string(kMaxTextBytes + 1, 'x'));
  EXPECT_EQ(decode(leave).error().code(), ErrorCode::kLimit);
}

TEST(Codec, RefusesWhatMakesNoSense) {
  EXPECT_EQ(decode(v4::FromNode()).error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(decode(v4::ToNode()).error().code(), ErrorCode::kProtocol);
  v4::FromNode nameless = encode(NodeMessage(spec()));
  nameless.mutable_join()->clear_node_id();
  EXPECT_EQ(decode(nameless).error().code(), ErrorCode::kProtocol);
  v4::FromNode port = encode(NodeMessage(spec()));
  port.mutable_join()->set_store_port(65536);
  EXPECT_EQ(decode(port).error().code(), ErrorCode::kProtocol);
  v4::ToNode message = encode(HostMessage(published()));
  for (const int node_rank : {-1, 3}) {
    message.mutable_published()->mutable_seat()->set_node_rank(node_rank);
    EXPECT_EQ(decode(message).error().code(), ErrorCode::kProtocol);
  }
  EXPECT_EQ(decode(encode(LeaseGrant{})).error().code(), ErrorCode::kProtocol);
  message = encode(HostMessage(published()));
  message.mutable_published()->mutable_round()->set_master_port(65536);
  EXPECT_EQ(decode(message).error().code(), ErrorCode::kProtocol);
}

// The host counts on from there.
TEST(Codec, TakesNoNumberOfRestartsThatCannotGrow) {
  for (const auto& [told, taken] : {std::pair(std::numeric_limits<int>::max(), kMostRestarts),
                                    std::pair(std::numeric_limits<int>::min(), 0)}) {
    const auto got =
        travel(NodeMessage(ResumeRequest{.spec = spec(), .round = 1, .restarts = told}));
    EXPECT_EQ(std::get<ResumeRequest>(*got).restarts, taken);
  }
}

TEST(Codec, TellsThatALeaderLostItsLeadership) {
  const SessionLost lost{.error = {ErrorCode::kLostLeadership, "another leads"}};
  const auto decoded = decode(encode(HostMessage(lost)));
  EXPECT_EQ(std::get<SessionLost>(std::get<HostMessage>(*decoded)).error, lost.error);
}

TEST(Codec, ReadsAnUnknownRefusalAsRejected) {
  v4::ToNode message;
  message.mutable_refused()->set_code(99);
  message.mutable_refused()->set_message("new");
  EXPECT_EQ(std::get<SessionLost>(std::get<HostMessage>(*decode(message))).error,
            Error(ErrorCode::kRejected, "new"));
}

TEST(Codec, FitsTheLargestMessagesIntoItsLimits) {
  const std::string name(kMaxNameBytes, 'n');
  NodeSpec join = spec();
  join.node_id = join.hostname = join.role = join.store_address = name;
  EXPECT_LE(encode(NodeMessage(join)).ByteSizeLong(), static_cast<std::size_t>(kMaxUpBytes));
  Failure wordy = failure();
  wordy.hostname = name;
  wordy.message = std::string(kMaxTextBytes, 'x');
  EXPECT_LE(encode(HostMessage(JobEnded{false, wordy})).ByteSizeLong(),
            static_cast<std::size_t>(kMaxDownBytes));
  EXPECT_LE(encode(NodeMessage(Leave{wordy})).ByteSizeLong(),
            static_cast<std::size_t>(kMaxUpBytes));
}

}  // namespace
}  // namespace ddprun::rendezvous
