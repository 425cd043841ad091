// The values of a job's keys in etcd: what is written is read back, and nothing else is believed.
#include "rendezvous/election/job_keys.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

RecordedJob recorded() {
  return {.state = RecordedJob::State::kRuns,
          .record = {.round = 7,
                     .restarts = 2,
                     .rules = {.max_restarts = 3,
                               .window = milliseconds(60'000),
                               .backoff = milliseconds(500),
                               .backoff_max = milliseconds(4'000)},
                     .others = 2,
                     .leader_has_seat = true,
                     .leader = "host a"},
          .min_nodes = 2,
          .max_nodes = 4,
          .node_unit = 2,
          .served = 9};
}

TEST(JobKeys, AreOfOneJob) {
  const JobKeys keys = job_keys("/ddprun", "job");
  EXPECT_EQ(keys.leader, "/ddprun/job/leader");
  EXPECT_EQ(keys.record, "/ddprun/job/record");
}

TEST(JobKeys, ReadTheLeaderBack) {
  for (const Leader& leader : {Leader{"10.0.0.1", 65535, "host-a"}, Leader{"fd00::1", 1, "a b"}}) {
    const auto decoded = decode_leader(encode(leader));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, leader);
  }
  EXPECT_EQ(encode(Leader{"10.0.0.1", 4000, "a"}), "v2 10.0.0.1 port=4000 a");
}

TEST(JobKeys, ReadTheRecordBack) {
  for (const auto state :
       {RecordedJob::State::kRuns, RecordedJob::State::kSucceeded, RecordedJob::State::kFailed}) {
    RecordedJob job = recorded();
    job.state = state;
    const auto decoded = decode_record(encode(job));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, job);
  }
  EXPECT_EQ(
      encode(recorded()),
      "v3 runs round=7 restarts=2 others=2 leader_has_seat=1 max_restarts=3 "
      "window_ms=60000 backoff_ms=500 backoff_max_ms=4000 min_nodes=2 max_nodes=4 node_unit=2 "
      "served=9 host a");
}

TEST(JobKeys, RefuseALeaderThatMakesNoSense) {
  for (const std::string text :
       {"", "v2", "v1 10.0.0.1 port=4000 a", "v2 10.0.0.1 4000 a", "v2 10.0.0.1 port= a",
        "v2 10.0.0.1 port=0 a", "v2 10.0.0.1 port=65536 a", "v2 10.0.0.1 port=-1 a",
        "v2 10.0.0.1 port=4x a", "v2  port=4000 a"})
    EXPECT_FALSE(decode_leader(text)) << text;
  EXPECT_FALSE(decode_leader(encode(Leader{"1.1.1.1", 1, std::string(kMaxValueBytes, 'x')})));
}

TEST(JobKeys, RefuseALeaderThatHasNoRoomForTheBlankBeforeItsName) {
  const auto without_name = [](std::size_t bytes) {
    const std::string port = " port=1";
    return "v2 " + std::string(bytes - 3 - port.size(), 'x') + port;
  };
  const auto longest = decode_leader(without_name(kMaxValueBytes - 1));
  ASSERT_TRUE(longest);
  EXPECT_EQ(encode(*longest).size(), kMaxValueBytes);
  EXPECT_EQ(decode_leader(encode(*longest)).value(), *longest);
  EXPECT_FALSE(decode_leader(without_name(kMaxValueBytes)));
}

// Cut at any place but in the host's name, and with any one word gone.
TEST(JobKeys, RefuseARecordThatIsNotWhole) {
  const std::string text = encode(recorded());
  for (std::size_t size = 0; size < text.find("served=9"); ++size)
    EXPECT_FALSE(decode_record(text.substr(0, size))) << size;
  for (std::size_t at = 0; at < text.find(" host"); at = text.find(' ', at) + 1) {
    std::string without = text;
    without.erase(at, text.find(' ', at) + 1 - at);
    EXPECT_FALSE(decode_record(without)) << without;
  }
}

TEST(JobKeys, RefuseNumbersThatCannotBe) {
  for (const std::string wrong : {"round=-1", "round=9223372036854775807", "round=", "round=x"}) {
    std::string text = encode(recorded());
    text.replace(text.find("round=7"), 7, wrong);
    EXPECT_FALSE(decode_record(text)) << text;
  }
  std::string text = encode(recorded());
  text.replace(text.find("restarts=2"), 10, "restarts=2147483647");
  EXPECT_FALSE(decode_record(text)) << "one more would overflow";
}

TEST(JobKeys, RefuseNodesThatNoJobCanHave) {
  const auto decodes = [](int min_nodes, int max_nodes, int unit) {
    RecordedJob job = recorded();
    job.min_nodes = min_nodes;
    job.max_nodes = max_nodes;
    job.node_unit = unit;
    return decode_record(encode(job)).has_value();
  };
  EXPECT_TRUE(decodes(0, 0, 0)) << "an agent leads, and they are its own";
  EXPECT_TRUE(decodes(2, 2, 1));
  EXPECT_FALSE(decodes(0, 2, 1));
  EXPECT_FALSE(decodes(3, 2, 1));
  EXPECT_FALSE(decodes(2, 3, 2));
  EXPECT_FALSE(decodes(1, 2, 0));
  EXPECT_FALSE(decodes(1, kMaxNodes + 1, 1));
}

}  // namespace
}  // namespace ddprun::rendezvous
