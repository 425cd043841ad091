#include "rendezvous/codec.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

NodeSpec spec() {
  return {.node_id = "n1",
          .hostname = "host",
          .local_world_size = 8,
          .role = "trainer",
          .node_rank = 3,
          .store_address = "10.0.0.1",
          .store_port = 29500,
          .max_restarts = 2};
}

Failure failure() {
  return {.hostname = "host", .rank = 5, .local_rank = 1, .exit_code = -9, .message = "killed"};
}

Round large_round(int nodes) {
  Round round{.number = 1,
              .restart_count = 0,
              .world_size = nodes,
              .seats = {},
              .master_addr = "a",
              .master_port = 1};
  const std::string name(kMaxNameBytes, 'n');
  for (int i = 0; i < nodes; ++i)
    round.seats.push_back({.node_id = name, .hostname = name, .role = name, .first_rank = i});
  return round;
}

// Through the bytes, as on the wire.
Result<NodeMessage> travel(const NodeMessage& said) {
  v1::FromNode message;
  EXPECT_TRUE(message.ParseFromString(encode(said).SerializeAsString()));
  return decode(message);
}
Result<std::optional<HostMessage>> travel(const HostMessage& said) {
  v1::ToNode message;
  EXPECT_TRUE(message.ParseFromString(encode(said).SerializeAsString()));
  return decode(message);
}

TEST(Codec, CarriesEveryMessageOfANode) {
  EXPECT_EQ(std::get<NodeSpec>(*travel(NodeMessage(spec()))), spec());
  const auto failed = std::get<WorkerFailed>(*travel(NodeMessage(WorkerFailed{7, failure()})));
  EXPECT_EQ(failed.round, 7);
  EXPECT_EQ(failed.failure, failure());
  EXPECT_EQ(std::get<NodeSucceeded>(*travel(NodeMessage(NodeSucceeded{8}))).round, 8);
  EXPECT_EQ(std::get<Leave>(*travel(NodeMessage(Leave{failure()}))).reason, failure());
  EXPECT_TRUE(std::holds_alternative<Beat>(*travel(NodeMessage(Beat{}))));
}

TEST(Codec, CarriesDefaultsAndMinusOne) {
  NodeSpec plain;
  plain.node_id = "x";
  EXPECT_EQ(std::get<NodeSpec>(*travel(NodeMessage(plain))), plain);
}

TEST(Codec, CarriesEveryMessageOfTheHost) {
  const Round round = large_round(3);
  const auto published = std::get<RoundPublished>(**travel(HostMessage(RoundPublished{round, 2})));
  EXPECT_EQ(published.round, round);
  EXPECT_EQ(published.seat, 2);
  const auto broken = std::get<RoundBroken>(**travel(HostMessage(RoundBroken{4, failure()})));
  EXPECT_EQ(broken.round, 4);
  EXPECT_EQ(broken.cause, failure());
  const auto ended = std::get<JobEnded>(**travel(HostMessage(JobEnded{false, failure()})));
  EXPECT_FALSE(ended.succeeded);
  EXPECT_EQ(ended.cause, failure());
  EXPECT_TRUE(std::get<JobEnded>(**travel(HostMessage(JobEnded{true, {}}))).succeeded);
  const Error error(ErrorCode::kRejected, "no");
  EXPECT_EQ(std::get<SessionLost>(**travel(HostMessage(SessionLost{error}))).error, error);
  EXPECT_FALSE(decode(encode_beat())->has_value());
}

TEST(Codec, CarriesTextThatIsNoUtf8) {
  Failure odd = failure();
  odd.message = "latin-1 \xE9 and \xFF";
  EXPECT_EQ(std::get<Leave>(*travel(NodeMessage(Leave{odd}))).reason, odd);
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
  v1::FromNode leave;
  leave.mutable_leave()->mutable_reason()->set_message(std::string(kMaxTextBytes + 1, 'x'));
  EXPECT_EQ(decode(leave).error().code(), ErrorCode::kLimit);
}

TEST(Codec, RefusesWhatMakesNoSense) {
  EXPECT_EQ(decode(v1::FromNode()).error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(decode(v1::ToNode()).error().code(), ErrorCode::kProtocol);
  v1::FromNode nameless = encode(NodeMessage(spec()));
  nameless.mutable_join()->clear_node_id();
  EXPECT_EQ(decode(nameless).error().code(), ErrorCode::kProtocol);
  v1::FromNode port = encode(NodeMessage(spec()));
  port.mutable_join()->set_store_port(65536);
  EXPECT_EQ(decode(port).error().code(), ErrorCode::kProtocol);
  v1::ToNode seat = encode(HostMessage(RoundPublished{large_round(2), 1}));
  seat.mutable_published()->set_seat(2);
  EXPECT_EQ(decode(seat).error().code(), ErrorCode::kProtocol);
  seat.mutable_published()->set_seat(-1);
  EXPECT_EQ(decode(seat).error().code(), ErrorCode::kProtocol);
}

TEST(Codec, ReadsAnUnknownRefusalAsRejected) {
  v1::ToNode message;
  message.mutable_refused()->set_code(99);
  message.mutable_refused()->set_message("new");
  EXPECT_EQ(std::get<SessionLost>(**decode(message)).error, Error(ErrorCode::kRejected, "new"));
}

TEST(Codec, FitsTheLargestMessagesIntoItsLimits) {
  const HostMessage largest = RoundPublished{large_round(kMaxNodes), 0};
  EXPECT_LE(encode(largest).ByteSizeLong(), static_cast<std::size_t>(kMaxDownBytes));
  const std::string name(kMaxNameBytes, 'n');
  NodeSpec join = spec();
  join.node_id = join.hostname = join.role = join.store_address = name;
  EXPECT_LE(encode(NodeMessage(join)).ByteSizeLong(), static_cast<std::size_t>(kMaxUpBytes));
  Failure wordy = failure();
  wordy.message = std::string(kMaxTextBytes, 'x');
  EXPECT_LE(encode(NodeMessage(Leave{wordy})).ByteSizeLong(),
            static_cast<std::size_t>(kMaxUpBytes));
}

}  // namespace
}  // namespace ddprun::rendezvous
