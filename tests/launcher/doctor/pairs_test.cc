#include "launcher/doctor/pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "launcher/doctor/between.h"
#include "launcher/doctor/peers.h"

namespace ddprun::launcher {
namespace {

const Peer kPeer{"node01", "10.77.0.1", 40000, "2.11.0", "580.1"};

TEST(Pairs, ComeBackAsTheyWereWritten) {
  const Peer peer = read_peer(write_peer(kPeer)).value();
  EXPECT_EQ(peer.host_name, kPeer.host_name);
  EXPECT_EQ(peer.address, kPeer.address);
  EXPECT_EQ(peer.port, kPeer.port);
  EXPECT_EQ(peer.torch, kPeer.torch);
  EXPECT_EQ(peer.driver, kPeer.driver);
  const auto pairs = read_pairs(write_pairs({{1, Reach::kSmallOnly, "no answer", 0.5, -2}}), 2);
  ASSERT_EQ(pairs.value().size(), 1U);
  EXPECT_EQ(pairs->front().to, 1);
  EXPECT_EQ(pairs->front().reach, Reach::kSmallOnly);
  EXPECT_EQ(pairs->front().error, "no answer");
  EXPECT_EQ(pairs->front().clock_difference, -2);
}

TEST(Pairs, APeerMayLeaveMembersOut) { EXPECT_EQ(read_peer("{}").value().host_name, ""); }

TEST(Pairs, APeerOfOtherTypesIsNone) {
  for (const std::string value : {"null", "true", "7", "-1", "1.5", "[]", "{}", "1e300"}) {
    for (const std::string name : {"host", "address", "torch", "driver"})
      EXPECT_FALSE(read_peer("{\"" + name + "\":" + value + "}")) << name << value;
    EXPECT_EQ(read_peer("{\"port\":" + value + "}").has_value(), value == "7") << value;
  }
  for (const std::string text :
       {"", "null", "[]", "\"x\"", "{", "{\"host\":\"\xff\"}", "7", "{\"port\":65536}",
        "{\"port\":\"7\"}", "{\"port\":18446744073709551616}"})
    EXPECT_FALSE(read_peer(text)) << text;
  EXPECT_FALSE(read_peer(std::string(1U << 20U, '[')));
}

TEST(Pairs, PairsOfOtherTypesOrToNoNodeAreNone) {
  for (const std::string text :
       {"{}", "[1]", "[[]]", "[[1,2,\"\",0]]", "[[2,2,\"\",0,0]]", "[[-1,2,\"\",0,0]]",
        "[[1e300,2,\"\",0,0]]", "[[1,3,\"\",0,0]]", "[[1,-1,\"\",0,0]]", "[[1,2,null,0,0]]",
        "[[1,2,\"\",\"0\",0]]", "[[1,2,\"\",0,1e999]]", "[[4294967297,2,\"\",0,0]]"})
    EXPECT_FALSE(read_pairs(text, 2)) << text;
  EXPECT_FALSE(read_pairs("[[0,2,\"\",0,0]]", 0));
  EXPECT_TRUE(read_pairs("[]", 0));
}

TEST(Pairs, AClockThatIsTwoSecondsAheadIsSaid) {
  const Peer other{"node02", "10.77.0.2", 40001, "2.11.0", "580.1"};
  const auto found =
      judge_pairs({kPeer, other}, {std::vector<Pair>{{1, Reach::kAll, "", 0.001, 2}},
                                   std::vector<Pair>{{0, Reach::kAll, "", 0.001, -2}}});
  const auto clocks = std::find_if(found.begin(), found.end(),
                                   [](const Finding& one) { return one.what == "clocks"; });
  ASSERT_NE(clocks, found.end());
  EXPECT_EQ(clocks->level, Level::kWarning);
  EXPECT_EQ(clocks->fact, "node02's clock is 2.000 s ahead of node01's");
  EXPECT_NE(clocks->remedy.find("chronyc makestep"), std::string::npos);
}

TEST(Pairs, WhatNoNodeHasNeedsNoLine) {
  Peer first = kPeer;
  Peer second = kPeer;
  const auto said = [&](const std::string& what) {
    const auto found = judge_pairs({first, second}, {std::vector<Pair>(), std::vector<Pair>()});
    const auto one = std::find_if(found.begin(), found.end(),
                                  [&](const Finding& finding) { return finding.what == what; });
    return one == found.end() ? std::string() : text_of({*one});
  };
  EXPECT_EQ(said("torch"), "ok   torch: 2.11.0 on all nodes\n");
  second.torch = "";
  EXPECT_TRUE(said("torch").starts_with("FAIL torch: ")) << said("torch");
  first.torch = first.driver = second.driver = "";
  EXPECT_EQ(said("torch"), "");
  EXPECT_EQ(said("GPU driver"), "");
}

// Bytes are changed, taken out and put in, at places that the seed gives. The text that is read is
// judged, too.
TEST(Pairs, NothingThatAPeerWritesThrows) {
  std::mt19937 random(15);  // NOLINT(cert-msc51-cpp): the same in each run
  const auto below = [&](std::size_t end) { return random() % std::max<std::size_t>(end, 1); };
  constexpr std::string_view kBytes = "{}[]\",:0123456789eE+-.tfn\\u\xff\x01";
  int understood = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = round % 2 == 0
                           ? write_peer(kPeer)
                           : write_pairs({{1, Reach::kAll, "x", 0.1, 0.2}, {0, Reach::kNothing}});
    for (std::size_t change = 0; change <= below(4) && !text.empty(); ++change) {
      const auto at = static_cast<std::ptrdiff_t>(below(text.size()));
      const char byte = kBytes[below(kBytes.size())];
      switch (below(3)) {
        case 0:
          text[static_cast<std::size_t>(at)] = byte;
          break;
        case 1:
          text.erase(text.begin() + at);
          break;
        default:
          text.insert(text.begin() + at, byte);
      }
    }
    const auto peer = read_peer(text);
    const auto pairs = read_pairs(text, 2);
    if (!peer && !pairs) continue;
    ++understood;
    EXPECT_FALSE(judge_pairs({kPeer, peer.value_or(Peer{})}, {pairs, std::nullopt}).empty());
  }
  EXPECT_GT(understood, 1000);
}

TEST(Peers, HaveTimeForAllPairs) {
  EXPECT_EQ(time_of_pairs(1), std::chrono::milliseconds(0));
  EXPECT_EQ(time_of_pairs(2), kPairLimit);
  EXPECT_EQ(time_of_pairs(65), kPairLimit);
  EXPECT_EQ(time_of_pairs(66), 2 * kPairLimit);
}

TEST(Between, WaitsForNobodyAsLongAsAJobMay) {
  const RendezvousConf usual = doctor_rendezvous({});
  EXPECT_EQ(usual.settings.join_timeout, kRendezvousLimit);
  EXPECT_EQ(usual.read_timeout, kRendezvousLimit);
  EXPECT_EQ(usual.timeout, kRendezvousLimit);
  RendezvousConf quick;
  quick.settings.join_timeout = quick.read_timeout = quick.timeout = std::chrono::seconds(1);
  EXPECT_EQ(doctor_rendezvous(quick), quick);
}

}  // namespace
}  // namespace ddprun::launcher
