#include "launcher/options/flag_values.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace ddprun::launcher {
namespace {

TEST(ParseInt, TakesAWholeDecimalNumberAndNothingElse) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-1"), -1);
  EXPECT_EQ(parse_int("+2"), 2);
  EXPECT_EQ(parse_int("2147483647"), 2147483647);
  for (const auto* text : {"", "x", "1x", "1.0", " 1", "+-1", "2147483648", "0x10"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
  }
}

TEST(ParseNumber, TakesFiniteDecimalsOnly) {
  EXPECT_EQ(parse_number("0.1"), 0.1);
  EXPECT_EQ(parse_number("5"), 5.0);
  EXPECT_EQ(parse_number("1e-2"), 0.01);
  EXPECT_EQ(parse_number("-3"), -3.0);
  for (const auto* text : {"", "x", "1s", "inf", "nan", "1e999"}) {
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  }
}

TEST(ParseNodeCount, TakesANumberOrARange) {
  EXPECT_EQ(*parse_node_count("3"), (NodeCount{3, 3}));
  EXPECT_EQ(*parse_node_count("2:2"), (NodeCount{2, 2}));
  EXPECT_EQ(*parse_node_count("1:4"), (NodeCount{1, 4}));
}

TEST(ParseNodeCount, RefusesWhatIsNoRange) {
  for (const auto* text : {"", "0", "-1", "2:1", "0:1", "1:2:3", "x", "1:x", ":2", "1:"}) {
    const auto count = parse_node_count(text);
    ASSERT_FALSE(count) << text;
    EXPECT_EQ(count.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(count.error().message(), "expected N or MIN:MAX with 0 < MIN <= MAX <= 16384");
  }
}

TEST(ParseNodeCount, IsBounded) {
  EXPECT_EQ(parse_node_count(std::to_string(kMaxNodes))->max, kMaxNodes);
  EXPECT_FALSE(parse_node_count(std::to_string(kMaxNodes + 1)));
}

TEST(ParseStdSpec, TakesOneDigitForAllRanks) {
  const StdSpec spec = *parse_std_spec("3");
  EXPECT_EQ(spec.of(0), Streams::kBoth);
  EXPECT_EQ(spec.of(4000), Streams::kBoth);
  EXPECT_FALSE(spec.none());
  EXPECT_TRUE(parse_std_spec("0")->none());
}

TEST(ParseStdSpec, TakesOneDigitARankAndNoneForOthers) {
  const StdSpec spec = *parse_std_spec("0:1,1:2,10:3,2:0");
  EXPECT_EQ(spec.of(0), Streams::kOut);
  EXPECT_EQ(spec.of(1), Streams::kErr);
  EXPECT_EQ(spec.of(2), Streams::kNone);
  EXPECT_EQ(spec.of(3), Streams::kNone);
  EXPECT_EQ(spec.of(10), Streams::kBoth);  // torchrun refuses ranks above 9
  EXPECT_FALSE(spec.none());
  EXPECT_TRUE(parse_std_spec("0:0,5:0")->none());
}

TEST(ParseStdSpec, RefusesOthers) {
  const std::string too_high = std::to_string(kMaxWorkersPerNode) + ":1";
  for (const std::string text :
       {"", "4", "33", "x", "0:4", "0:", ":1", "0:1,", "-1:1", "0:1:2", "=3", too_high.c_str()}) {
    const auto spec = parse_std_spec(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().message(),
              "expected 0, 1, 2 or 3 (none, stdout, stderr, both), or RANK:DIGIT,…");
  }
}

TEST(StreamsWords, TellWhichStreamsTheyHold) {
  EXPECT_FALSE(has_out(Streams::kNone) || has_err(Streams::kNone));
  EXPECT_TRUE(has_out(Streams::kOut) && !has_err(Streams::kOut));
  EXPECT_TRUE(!has_out(Streams::kErr) && has_err(Streams::kErr));
  EXPECT_TRUE(has_out(Streams::kBoth) && has_err(Streams::kBoth));
}

TEST(ParseEndpoint, TakesNamesAndAddressesOfBothKinds) {
  EXPECT_EQ(*parse_endpoint("n1"), (Endpoint{"n1", std::nullopt}));
  EXPECT_EQ(*parse_endpoint("n1.example:29500"), (Endpoint{"n1.example", 29500}));
  EXPECT_EQ(*parse_endpoint("10.0.0.1:0"), (Endpoint{"10.0.0.1", 0}));
  EXPECT_EQ(*parse_endpoint("[::1]"), (Endpoint{"::1", std::nullopt}));
  EXPECT_EQ(*parse_endpoint("[fe80::1%eth0]:29400"), (Endpoint{"fe80::1%eth0", 29400}));
  EXPECT_EQ(*parse_endpoint(" n1:65535 "), (Endpoint{"n1", 65535}));
}

TEST(ParseEndpoint, RefusesOthers) {
  for (const auto* text : {"", ":1", "n1:", "n1:x", "n1:-1", "n1:65536", "::1", "::1:29400", "[::1",
                           "[]", "[::1]29400", "[::1]:", "tcp://n1:1", "n 1:1", "n1/x"}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ParseHttpPlan, TakesAPortWithOrWithoutAnAddress) {
  using agent::HttpPlan;
  for (const char* text : {"9400", ":9400", " :9400 "})
    EXPECT_EQ(*parse_http_plan(text), (HttpPlan{"", 9400})) << text;
  EXPECT_EQ(*parse_http_plan(":0"), (HttpPlan{"", 0}));
  EXPECT_EQ(*parse_http_plan("10.0.0.1:9400"), (HttpPlan{"10.0.0.1", 9400}));
  EXPECT_EQ(*parse_http_plan("[::1]:9400"), (HttpPlan{"::1", 9400}));
  EXPECT_EQ(*parse_http_plan("0.0.0.0:65535"), (HttpPlan{"0.0.0.0", 65535}));
}

TEST(ParseHttpPlan, RefusesOthers) {
  for (const char* text : {"", ":", "n1:9400", "10.0.0.1", "10.0.0.1:", ":65536", ":-1", "::1:9400",
                           "[::1]", "[10.0.0.1:1", ":9400/", "10.0.0:9400", "http"}) {
    const auto plan = parse_http_plan(text);
    ASSERT_FALSE(plan) << text;
    EXPECT_TRUE(plan.error().message().starts_with("expected PORT, :PORT")) << text;
  }
}

TEST(ParseRanks, TakesWholeNumbersBetweenCommas) {
  EXPECT_EQ(*parse_ranks("0,2"), (std::set<int>{0, 2}));
  EXPECT_EQ(*parse_ranks(" 7 ,7"), (std::set<int>{7}));
  EXPECT_EQ(*parse_ranks("-1"), (std::set<int>{-1}));  // no rank of any node: silences all
  EXPECT_TRUE(parse_ranks("")->empty());
  for (const auto* text : {"x", "0,", ",", "0;1", "0-2"}) {
    ASSERT_FALSE(parse_ranks(text)) << text;
    EXPECT_EQ(parse_ranks(text).error().message(), "expected local ranks, such as 0,2");
  }
}

TEST(ParseTexts, CutsAtCommasAndKeepsDoubledOnes) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(parse_texts("apple,orange"), (Texts{"apple", "orange"}));
  EXPECT_EQ(parse_texts("a,,b"), (Texts{"a,b"}));
  EXPECT_EQ(parse_texts(",,,x"), (Texts{",", "x"}));
  EXPECT_EQ(parse_texts(""), (Texts{""}));
  EXPECT_EQ(parse_texts("a,"), (Texts{"a", ""}));
}

TEST(ParseSeconds, TakesDecimalsFromZero) {
  EXPECT_EQ(parse_seconds("0")->count(), 0);
  EXPECT_EQ(parse_seconds("0.5")->count(), 500);
  EXPECT_EQ(parse_seconds("1e9")->count(), 1'000'000'000'000);
  for (const auto* text : {"", "x", "-1", "1s", "nan", "1.1e9"}) {
    EXPECT_FALSE(parse_seconds(text)) << text;
  }
}

TEST(ParseBackoff, TakesABaseAndAMost) {
  using std::chrono::milliseconds;
  EXPECT_EQ(*parse_backoff("2:8.5"), (Backoff{milliseconds(2000), milliseconds(8500)}));
  EXPECT_EQ(*parse_backoff("2"), (Backoff{milliseconds(2000), milliseconds(60'000)}));
  EXPECT_EQ(*parse_backoff("90"), (Backoff{milliseconds(90'000), milliseconds(90'000)}));
  EXPECT_EQ(*parse_backoff("0:0"), Backoff{});
  for (const auto* text : {"", ":", "x", "1:", ":1", "2:1", "1:2:3", "-1"}) {
    ASSERT_FALSE(parse_backoff(text)) << text;
    EXPECT_EQ(parse_backoff(text).error().message(),
              "expected seconds BASE or BASE:MAX with 0 <= BASE <= MAX, such as 1:60");
  }
}

TEST(ParseRendezvousConf, HasTorchrunsDefaults) {
  const RendezvousConf conf = *parse_rendezvous_conf("");
  EXPECT_EQ(conf.settings.join_timeout, std::chrono::seconds(600));
  EXPECT_EQ(conf.settings.last_call, std::chrono::seconds(30));
  EXPECT_EQ(conf.read_timeout.count(), 60);
  EXPECT_EQ(conf.timeout.count(), 900);
  EXPECT_EQ(conf.is_host, std::nullopt);
}

TEST(ParseRendezvousConf, SetsEveryKeyItself) {
  const RendezvousConf conf = *parse_rendezvous_conf(
      "join_timeout=1,last_call_timeout=2, close_timeout = "
      "3,heartbeat_timeout=4,keep_alive_interval=5,"
      "keep_alive_max_attempt=6,read_timeout=7,timeout=8,store_type=tcp,cas_backoff_max_seconds=0."
      "5");
  EXPECT_EQ(conf.settings.join_timeout, std::chrono::seconds(1));
  EXPECT_EQ(conf.settings.last_call, std::chrono::seconds(2));
  EXPECT_EQ(conf.read_timeout.count(), 7);
  EXPECT_EQ(conf.timeout.count(), 8);
  EXPECT_EQ(conf.known_keys.size(), 10U);
  EXPECT_EQ(conf.known_keys[2], "close_timeout");
  EXPECT_TRUE(conf.unknown_keys.empty());
}

// torchrun takes a million years. The clocks of the launcher do not.
TEST(ParseRendezvousConf, TakesMoreSecondsThanAnybodyWaits) {
  for (const auto* text : {"1000000000", "1111111111", "9999999999", "9223372036854775807"}) {
    const auto conf =
        *parse_rendezvous_conf("heartbeat_timeout=9999999999,join_timeout=" + std::string(text));
    EXPECT_TRUE(conf.bad_values.empty()) << text;
    EXPECT_EQ(conf.settings.join_timeout, std::chrono::seconds(1'000'000'000)) << text;
  }
  EXPECT_EQ(parse_rendezvous_conf("join_timeout=9223372036854775808")->bad_values.size(), 1U);
}

TEST(ParseRendezvousConf, ReadsTruthValuesOfIsHost) {
  for (const auto* yes : {"1", "true", "T", "yes", "Y"}) {
    EXPECT_EQ(parse_rendezvous_conf(std::string("is_host=") + yes)->is_host, true) << yes;
  }
  for (const auto* no : {"0", "False", "f", "no", "n"}) {
    EXPECT_EQ(parse_rendezvous_conf(std::string("is_host=") + no)->is_host, false) << no;
  }
  EXPECT_EQ(parse_rendezvous_conf("is_host=maybe")->bad_values.size(), 1U);
}

TEST(ParseRendezvousConf, KeepsUnknownKeysForAWarning) {
  const RendezvousConf conf = *parse_rendezvous_conf("jion_timeout=4,etcd_suffix=/x");
  EXPECT_EQ(conf.unknown_keys, (std::vector<std::string>{"jion_timeout", "etcd_suffix"}));
}

// torchrun's two backends of etcd have two names for each file.
TEST(ParseRendezvousConf, ReadsWhatConcernsEtcd) {
  const rendezvous::EtcdPlan expected{.prefix = "/x",
                                      .with_tls = true,
                                      .ca_file = "a",
                                      .cert_file = "b",
                                      .key_file = "c",
                                      .username = "u",
                                      .password = "p"};
  for (const auto* text :
       {"etcd_prefix=/x,protocol=https,cacert=a,cert=b,key=c,username=u,password=p",
        "etcd_prefix=/x,protocol=https,ca_cert=a,ssl_cert=b,ssl_cert_key=c,username=u,password=p"})
    EXPECT_EQ(parse_rendezvous_conf(text)->etcd, expected) << text;
  EXPECT_EQ(parse_rendezvous_conf("username=u,password_file=/p")->etcd.password_file, "/p");
  EXPECT_EQ(parse_rendezvous_conf("protocol=ftp")->bad_values.size(), 1U);
}

TEST(ParseEndpoints, ReadMembersOfEtcd) {
  EXPECT_EQ(*parse_endpoints("h1:2379,[::1]:7,h3"),
            (std::vector<Endpoint>{{"h1", 2379}, {"::1", 7}, {"h3", {}}}));
  for (const auto* text : {"", ",", "h1,", "h1:0", "h1:x", "h1 h2", "http://h1:2379"})
    EXPECT_FALSE(parse_endpoints(text)) << text;
  std::string many = "h";
  for (std::size_t i = 0; i < kMaxEtcdMembers; ++i) many += ",h";
  EXPECT_FALSE(parse_endpoints(many));
}

TEST(ParseRendezvousConf, RefusesMalformedPairs) {
  for (const auto* text : {"foo", "=1", "a=", "join_timeout=1,", ","}) {
    const auto conf = parse_rendezvous_conf(text);
    ASSERT_FALSE(conf) << text;
    EXPECT_EQ(conf.error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(ParseRendezvousConf, KeepsValuesThatDoNotFitForWhoKnowsTheBackend) {
  for (const auto* text :
       {"join_timeout=0", "join_timeout=-1", "join_timeout=x", "join_timeout=1.5", "timeout=0",
        "keep_alive_max_attempt=0", "close_timeout=-1", "heartbeat_timeout=x",
        "keep_alive_interval=0", "store_type=disk", "cas_backoff_max_seconds=-1"}) {
    const RendezvousConf conf = *parse_rendezvous_conf(text);
    ASSERT_EQ(conf.bad_values.size(), 1U) << text;
    EXPECT_TRUE(std::string_view(text).starts_with(conf.bad_values[0].key + "="));
    EXPECT_EQ(conf.bad_values[0].error.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_TRUE(conf.known_keys.empty()) << text;
    EXPECT_EQ(conf.settings.join_timeout, std::chrono::seconds(600)) << "the default stays";
  }
  EXPECT_EQ(parse_rendezvous_conf("join_timeout=x")->bad_values[0].error.message(),
            "expected join_timeout to be a whole number above 0");
  EXPECT_EQ(parse_rendezvous_conf("store_type=file")->bad_values[0].error,
            Error(ErrorCode::kRejected, "store_type=file is not built yet"));
}

}  // namespace
}  // namespace ddprun::launcher
