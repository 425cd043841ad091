#include "rendezvous/trust/http2_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "rendezvous/trust/clear_refusal.h"
#include "rendezvous/trust/http2_frame.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

std::string frame_of(Http2Kind kind, std::size_t length = 0, std::uint8_t flags = 0) {
  return write_frame(kind, flags, 1, std::string(length, 'x'));
}

std::string beginning() { return std::string(kHttp2Preface) + frame_of(Http2Kind::kSettings, 30); }

// Returns the bytes of a node until it is let in.
std::string node_text() {
  return beginning() + frame_of(Http2Kind::kWindowUpdate, 4) +
         frame_of(Http2Kind::kSettings, 0, kAck) + frame_of(Http2Kind::kHeaders, 400, kEndHeaders) +
         frame_of(Http2Kind::kData, 40) + frame_of(Http2Kind::kPing, 8);
}

struct Http2MeterTest : testing::Test {
  // Returns how many of `unit` are taken after a beginning, at one moment.
  int taken(const std::string& unit, Http2Meter& meter) {
    int count = 0;
    while (count < 100'000 && meter.took(unit, now)) ++count;
    return count;
  }
  int taken(const std::string& unit) {
    Http2Meter meter(Http2Meter::Wire::kClear);
    EXPECT_TRUE(meter.took(beginning(), now));
    return taken(unit, meter);
  }

  Http2Meter::Time now{};
};

TEST_F(Http2MeterTest, TakesWhatANodeSendsInAnyPieces) {
  for (const std::size_t piece : {1UL, 7UL, 64UL, 10'000UL}) {
    Http2Meter meter(Http2Meter::Wire::kClear);
    const std::string text = node_text();
    std::string_view rest = text;
    for (; !rest.empty(); rest.remove_prefix(std::min(piece, rest.size()))) {
      now += seconds(1);  // a slow network
      EXPECT_TRUE(meter.took(rest.substr(0, piece), now)) << piece;
    }
  }
}

TEST_F(Http2MeterTest, RefusesWhatIsNotHttp2) {
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n"),
        std::string(kHttp2Preface) + frame_of(Http2Kind::kPing, 8), std::string(1, 'P') + "x"}) {
    Http2Meter meter(Http2Meter::Wire::kClear);
    EXPECT_FALSE(meter.took(text, now)) << text;
    EXPECT_FALSE(meter.took(node_text(), now)) << "it stays refused";
  }
}

TEST_F(Http2MeterTest, CutsEachKindOfFlood) {
  EXPECT_LE(taken(frame_of(Http2Kind::kHeaders, 300, kEndHeaders)), 8);
  EXPECT_LE(
      taken(frame_of(Http2Kind::kHeaders, 300, kEndHeaders) + frame_of(Http2Kind::kResetStream, 4)),
      4);
  for (const auto kind :
       {Http2Kind::kSettings, Http2Kind::kPing, Http2Kind::kWindowUpdate, Http2Kind::kPriority,
        Http2Kind::kData, Http2Kind::kGoAway, static_cast<Http2Kind>(99)})
    EXPECT_LE(taken(frame_of(kind)), 64) << static_cast<int>(kind);
  EXPECT_LE(taken(frame_of(Http2Kind::kHeaders, 1000) + frame_of(Http2Kind::kContinuation, 1000)),
            8);
  EXPECT_LE(taken(frame_of(Http2Kind::kContinuation, 1000)), 16) << "one header block";
  EXPECT_LE(taken(frame_of(Http2Kind::kHeaders, 17'000, kEndHeaders)), 0);
  EXPECT_LE(taken(frame_of(Http2Kind::kData, 16'000)), 4) << "bytes";
}

TEST_F(Http2MeterTest, CutsOneThatSendsByteForByte) {
  Http2Meter meter(Http2Meter::Wire::kClear);
  EXPECT_TRUE(meter.took(beginning() + std::string(2, '\0') + std::string(1, '\x10'), now));
  EXPECT_LE(taken("\x01", meter), 128);
}

TEST_F(Http2MeterTest, AllowsAHealthProbeOnOneConnection) {
  Http2Meter meter(Http2Meter::Wire::kClear);
  EXPECT_TRUE(meter.took(beginning(), now));
  for (int i = 0; i < 1000; ++i) {
    now += seconds(1);
    EXPECT_TRUE(meter.took(frame_of(Http2Kind::kHeaders, 100, kEndHeaders), now));
  }
}

TEST_F(Http2MeterTest, AllowsFarMoreAfterTheProofButNotWithoutEnd) {
  Http2Meter meter(Http2Meter::Wire::kClear);
  EXPECT_TRUE(meter.took(node_text(), now));
  meter.prove();
  const int heartbeats = taken(frame_of(Http2Kind::kData, 20), meter);
  EXPECT_GE(heartbeats, 10'000);
  EXPECT_LE(heartbeats, 20'000);
}

TEST_F(Http2MeterTest, OfTlsItCountsReadsAndBytes) {
  Http2Meter meter(Http2Meter::Wire::kTls);
  EXPECT_TRUE(meter.took(std::string(20'000, 'x'), now));
  EXPECT_LE(taken(std::string(100, 'x'), meter), 127);
  Http2Meter proven(Http2Meter::Wire::kTls);
  proven.prove();
  EXPECT_GE(taken(std::string(1000, 'x'), proven), 10'000);
}

TEST(ClearRefusalTest, AnswersACallAndWantsNothingElse) {
  ClearRefusal refusal;
  const std::string call = write_frame(Http2Kind::kHeaders, kEndHeaders, 1, "path of a node");
  std::string said;
  for (const char byte : beginning() + call) said += refusal.answer({&byte, 1});
  EXPECT_TRUE(refusal.is_done());
  EXPECT_NE(said.find("it wants TLS: tls_ca, tls_cert and tls_key in --rdzv-conf"), said.npos);
  EXPECT_EQ(refusal.answer(call), "");
}

TEST(ClearRefusalTest, TellsAnOperatorItsOwnFlags) {
  ClearRefusal refusal;
  const std::string said =
      refusal.answer(beginning() + write_frame(Http2Kind::kHeaders, kEndHeaders, 1,
                                               "/ddprun.control.v2.Control/Ask"));
  EXPECT_NE(said.find("expected --tls-ca, --tls-cert and --tls-key"), said.npos);
}

TEST(ClearRefusalTest, EndsWithOneThatIsNoPeerOrSendsTooMuch) {
  ClearRefusal foreign;
  EXPECT_EQ(foreign.answer("GET / HTTP/1.1"), "");
  EXPECT_TRUE(foreign.is_done());
  ClearRefusal endless;
  for (int i = 0; i < 20 && !endless.is_done(); ++i)
    EXPECT_EQ(endless.answer(i == 0 ? beginning() : frame_of(Http2Kind::kPing, 1000)), "");
  EXPECT_TRUE(endless.is_done());
}

}  // namespace
}  // namespace ddprun::rendezvous
