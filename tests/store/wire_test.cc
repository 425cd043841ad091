// Bytes <-> requests. The hex strings were captured between torch 2.11 clients and servers.
#include "store/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "tests/store/hex.h"

namespace ddprun::store {
namespace {

// A request that owns its strings.
struct Owned {
  Op op = Op::kPing;
  std::int64_t number = 0;
  std::vector<std::string> fields;
  bool operator==(const Owned&) const = default;
};

const std::string kHello = unhex("00 cef7853c");

Owned own(const Request& request) {
  return {request.op, request.number, {request.fields.begin(), request.fields.end()}};
}

struct Decoded {
  std::vector<Owned> requests;
  std::optional<Error> error;
};

// Feeds `bytes` in pieces of `step` bytes and collects what comes out.
Decoded decode(std::string_view bytes, std::size_t step, const StoreLimits& limits = {}) {
  Decoder decoder(limits);
  Decoded decoded;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size()))) {
    // A copy that dies: whoever keeps a view of the chunk too long is seen by AddressSanitizer.
    const std::vector<char> chunk(
        bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(std::min(step, bytes.size())));
    decoder.feed({chunk.data(), chunk.size()});
    for (;;) {
      const auto request = decoder.next();
      if (request.has_error()) {
        decoded.error = request.error();
        return decoded;
      }
      if (!request->has_value()) break;
      decoded.requests.push_back(own(**request));
    }
  }
  return decoded;
}

Decoded decode_whole(const std::string& bytes, const StoreLimits& limits = {}) {
  return decode(bytes, bytes.size(), limits);
}

std::string encoded(const Owned& request) {
  const std::vector<std::string_view> fields(request.fields.begin(), request.fields.end());
  std::string bytes;
  encode({request.op, request.number, fields}, bytes);
  return bytes;
}

struct Capture {
  std::string hex;
  Owned request;
};

const std::vector<Capture>& captures() {
  static const std::vector<Capture> all = {
      {"0d 2e210000", {Op::kPing, 0x212e, {}}},
      {"01 0200000000000000 2f6b 0200000000000000 7631", {Op::kSet, 0, {"/k", "v1"}}},
      {"06 0100000000000000 0200000000000000 2f6b", {Op::kWait, 0, {"/k"}}},
      {"03 0200000000000000 2f6b", {Op::kGet, 0, {"/k"}}},
      {"04 0200000000000000 2f6e 0500000000000000", {Op::kAdd, 5, {"/n"}}},
      {"04 0200000000000000 2f6e feffffffffffffff", {Op::kAdd, -2, {"/n"}}},
      {"05 0200000000000000 0200000000000000 2f6b 0300000000000000 2f7a7a",
       {Op::kCheck, 0, {"/k", "/zz"}}},
      {"05 0000000000000000", {Op::kCheck, 0, {}}},
      {"0c", {Op::kCancelWait, 0, {}}},
      {"02 0300000000000000 2f6373 0000000000000000 0200000000000000 6e31",
       {Op::kCompareSet, 0, {"/cs", "", "n1"}}},
      {"07", {Op::kNumKeys, 0, {}}},
      {"08 0200000000000000 2f6b", {Op::kDelete, 0, {"/k"}}},
      {"09 0300000000000000 2f6170 0200000000000000 4142", {Op::kAppend, 0, {"/ap", "AB"}}},
      {"0b 0200000000000000 0200000000000000 2f61 0100000000000000 31 0200000000000000 2f62 "
       "0200000000000000 3232",
       {Op::kMultiSet, 0, {"/a", "1", "/b", "22"}}},
      {"0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
       {Op::kMultiGet, 0, {"/a", "/b"}}},
      {"0e 0200000000000000 2f71 0200000000000000 7831", {Op::kQueuePush, 0, {"/q", "x1"}}},
      {"10 0200000000000000 2f71", {Op::kQueueLength, 0, {"/q"}}},
      {"0f 0200000000000000 2f71", {Op::kQueuePop, 0, {"/q"}}},
      {"11", {Op::kListKeys, 0, {}}},
      {"04 0500000000000000 696e69742f 0100000000000000", {Op::kAdd, 1, {"init/"}}},
      {"12 0300000000000000 2f6262 0200000000000000", {Op::kBarrier, 2, {"/bb"}}},
      {"01 0a00000000000000 2f6d69642f7072652f6b 0100000000000000 76",
       {Op::kSet, 0, {"/mid/pre/k", "v"}}},
  };
  return all;
}

std::string conversation() {
  std::string bytes = kHello;
  for (const Capture& capture : captures()) bytes += unhex(capture.hex);
  return bytes;
}

std::vector<Owned> conversation_requests() {
  std::vector<Owned> requests;
  for (const Capture& capture : captures()) requests.push_back(capture.request);
  return requests;
}

TEST(Wire, EncodesWhatPyTorchSends) {
  EXPECT_EQ(encoded({Op::kValidate, kMagic, {}}), kHello);
  for (const Capture& capture : captures())
    EXPECT_EQ(encoded(capture.request), unhex(capture.hex)) << capture.hex;
}

TEST(Wire, DecodesWhatPyTorchSendsHoweverItIsCut) {
  const std::string bytes = conversation();
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7},
                                 std::size_t{64}, bytes.size()}) {
    const Decoded decoded = decode(bytes, step);
    EXPECT_FALSE(decoded.error) << decoded.error->message();
    EXPECT_EQ(decoded.requests, conversation_requests()) << "step " << step;
  }
}

TEST(Wire, EveryCutIntoTwoPartsGivesTheSameRequests) {
  const std::string bytes = conversation();
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    StoreLimits limits;
    Decoder decoder(limits);
    std::vector<Owned> requests;
    for (const std::string& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
      decoder.feed(part);
      for (auto request = decoder.next(); request.value().has_value(); request = decoder.next())
        requests.push_back(own(**request));
    }
    ASSERT_EQ(requests, conversation_requests()) << "cut at " << cut;
  }
}

TEST(Wire, ATruncatedRequestIsNoRequestAndNoError) {
  for (const Capture& capture : captures()) {
    const std::string bytes = unhex(capture.hex);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const Decoded decoded = decode_whole(kHello + bytes.substr(0, size));
      EXPECT_TRUE(decoded.requests.empty()) << capture.hex << " cut to " << size;
      EXPECT_FALSE(decoded.error) << capture.hex << " cut to " << size;
    }
  }
}

TEST(Wire, AFlippedByteNeverReadsOutOfBoundsOrTakesMemory) {
  const std::string bytes = conversation();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const Decoded decoded = decode(damaged, 5);
      // Requests that came out whole before the flipped byte are as sent.
      EXPECT_LE(decoded.requests.size(), bytes.size());
      if (i < kHello.size()) {
        EXPECT_TRUE(decoded.requests.empty()) << "the handshake was damaged at byte " << i;
        EXPECT_TRUE(decoded.error);
      }
    }
  }
}

TEST(Wire, RandomBytesAfterTheHandshakeEndInAnErrorOrInWaiting) {
  std::mt19937 random(20240611);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = kHello;
    for (int i = 0; i < 64; ++i) bytes.push_back(static_cast<char>(random()));
    StoreLimits limits;
    Decoder decoder(limits);
    decoder.feed(bytes);
    for (auto request = decoder.next(); request.has_value() && request->has_value();
         request = decoder.next()) {
      for (const std::string_view field : (*request)->fields) ASSERT_LE(field.size(), bytes.size());
    }
    EXPECT_LE(decoder.held_bytes(), bytes.size());
  }
}

TEST(Wire, TheFirstByteMustBeValidate) {
  for (const char* first : {"01", "0d", "47", "ff"}) {
    const Decoded decoded = decode_whole(unhex(first));
    ASSERT_TRUE(decoded.error) << first;
    EXPECT_EQ(decoded.error->code(), ErrorCode::kProtocol);
  }
  EXPECT_TRUE(decode_whole("GET / HTTP/1.1\r\n").error);
}

TEST(Wire, AWrongMagicIsRefusedAsSoonAsItIsWhole) {
  EXPECT_FALSE(decode_whole(unhex("00 cef785")).error);
  EXPECT_TRUE(decode_whole(unhex("00 cef7853d")).error);
}

TEST(Wire, ASecondValidateIsRefused) { EXPECT_TRUE(decode_whole(kHello + kHello).error); }

TEST(Wire, UnknownOpcodesAreRefused) {
  for (int opcode = 19; opcode < 256; ++opcode) {
    const Decoded decoded = decode_whole(kHello + static_cast<char>(opcode));
    ASSERT_TRUE(decoded.error) << opcode;
    EXPECT_EQ(decoded.error->code(), ErrorCode::kProtocol);
  }
}

std::string u64(std::uint64_t number) {
  std::string bytes;
  put_number(static_cast<std::int64_t>(number), bytes);
  return bytes;
}

TEST(Wire, AbsurdLengthsAreRefusedAtTheHeader) {
  for (const std::uint64_t absurd :
       {std::uint64_t{1} << 62, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    for (const char* prefix :
         {"03", "04", "08", "05", "06", "0a", "0b", "0f", "12", "01", "01 0100000000000000 6b",
          "02 0100000000000000 6b 0000000000000000", "0e 0100000000000000 71"}) {
      const Decoded decoded = decode_whole(kHello + unhex(prefix) + u64(absurd));
      ASSERT_TRUE(decoded.error) << prefix;
      EXPECT_EQ(decoded.error->code(), ErrorCode::kLimit) << prefix;
    }
  }
}

TEST(Wire, KeysHaveALimit) {
  const std::string fits(kKeyBytes, 'k');
  EXPECT_EQ(decode_whole(kHello + encoded({Op::kGet, 0, {fits}})).requests.size(), 1U);
  const Decoded decoded = decode_whole(kHello + encoded({Op::kGet, 0, {fits + "k"}}));
  ASSERT_TRUE(decoded.error);
  EXPECT_EQ(decoded.error->message(), "key bytes: 8193: at most 8192");
}

TEST(Wire, ValuesHaveALimitOfTheirOwn) {
  const StoreLimits limits{.value_bytes = 10'000};
  const std::string fits(10'000, 'v');
  EXPECT_EQ(decode_whole(kHello + encoded({Op::kSet, 0, {"k", fits}}), limits).requests.size(), 1U);
  for (const Owned& request :
       {Owned{Op::kSet, 0, {"k", fits + "v"}}, Owned{Op::kAppend, 0, {"k", fits + "v"}},
        Owned{Op::kCompareSet, 0, {"k", fits + "v", ""}},
        Owned{Op::kCompareSet, 0, {"k", "", fits + "v"}},
        Owned{Op::kQueuePush, 0, {"k", fits + "v"}},
        Owned{Op::kMultiSet, 0, {"k", "", "l", fits + "v"}}}) {
    const Decoded decoded = decode_whole(kHello + encoded(request), limits);
    ASSERT_TRUE(decoded.error) << static_cast<int>(request.op);
    EXPECT_EQ(decoded.error->code(), ErrorCode::kLimit);
  }
}

TEST(Wire, TheDefaultsTakeWhatPyTorchSends) {
  const std::string bytes = kHello + encoded({Op::kSet, 0, {"k", std::string(8 * kMiB, 'v')}});
  const Decoded decoded = decode(bytes, 65536);
  ASSERT_FALSE(decoded.error) << decoded.error->message();
  EXPECT_EQ(decoded.requests.at(0).fields.at(1).size(), 8 * kMiB);
}

TEST(Wire, ListsHaveALimit) {
  EXPECT_FALSE(decode_whole(kHello + unhex("06") + u64(kKeysPerRequest)).error);
  EXPECT_TRUE(decode_whole(kHello + unhex("06") + u64(kKeysPerRequest + 1)).error);
  EXPECT_TRUE(decode_whole(kHello + unhex("0b") + u64(kKeysPerRequest + 1)).error);
  Owned many{Op::kCheck, 0, std::vector<std::string>(kKeysPerRequest, "k")};
  EXPECT_EQ(decode(kHello + encoded(many), 65536).requests.at(0), many);
}

TEST(Wire, AWholeRequestHasALimit) {
  const StoreLimits limits{.request_bytes = 1000};
  const Owned fits{Op::kMultiSet, 0, {"k", std::string(400, 'v'), "l", std::string(400, 'v')}};
  EXPECT_FALSE(decode_whole(kHello + encoded(fits), limits).error);
  const Owned over{Op::kMultiSet, 0, {"k", std::string(500, 'v'), "l", std::string(500, 'v')}};
  const Decoded decoded = decode_whole(kHello + encoded(over), limits);
  ASSERT_TRUE(decoded.error);
  EXPECT_EQ(decoded.error->code(), ErrorCode::kLimit);
  // Many requests in one chunk are not one request.
  std::string several = kHello;
  for (int i = 0; i < 50; ++i) several += encoded(fits);
  EXPECT_EQ(decode_whole(several, limits).requests.size(), 50U);
}

TEST(Wire, HoldsWhatIsNotDecodedYet) {
  const StoreLimits limits;
  Decoder decoder(limits);
  const std::string get = encoded({Op::kGet, 0, {"key"}});
  const std::string bytes = kHello + get + get + get.substr(0, 5);
  decoder.feed(bytes);
  EXPECT_EQ(decoder.held_bytes(), 0U);
  EXPECT_TRUE(decoder.next()->has_value());
  decoder.keep();  // one whole request and a part stay
  EXPECT_EQ(decoder.held_bytes(), get.size() + 5);
  EXPECT_TRUE(decoder.next()->has_value());
  EXPECT_FALSE(decoder.next()->has_value());
  EXPECT_EQ(decoder.held_bytes(), 5U);
  decoder.feed(get.substr(5));
  EXPECT_EQ(own(**decoder.next()), (Owned{Op::kGet, 0, {"key"}}));
  EXPECT_FALSE(decoder.next()->has_value());
  EXPECT_EQ(decoder.held_bytes(), 0U);
}

// As when a client sends many requests at once, and each turn decodes one of them.
TEST(Wire, HoldsAtMostTwiceWhatIsNotDecodedYet) {
  const StoreLimits limits;
  Decoder decoder(limits);
  const std::string get = encoded({Op::kGet, 0, {"key"}});
  std::string bytes = kHello;
  for (int i = 0; i < 10; ++i) bytes += get;
  decoder.feed(std::string_view(bytes).substr(0, bytes.size() - 5));
  for (std::size_t left = 10; left > 1; --left) {
    ASSERT_TRUE(decoder.next()->has_value());
    decoder.keep();
    EXPECT_LE(decoder.held_bytes(), 2 * ((left - 1) * get.size() - 5));
  }
  EXPECT_FALSE(decoder.next()->has_value());
  decoder.feed(std::string_view(bytes).substr(bytes.size() - 5));
  EXPECT_EQ(own(**decoder.next()), (Owned{Op::kGet, 0, {"key"}}));
  EXPECT_FALSE(decoder.next()->has_value());
  EXPECT_EQ(decoder.held_bytes(), 0U);
}

TEST(Wire, KeysAndValuesAreAnyBytes) {
  const Owned request{Op::kSet, 0, {std::string("\0a\xff", 3), std::string("\0\0", 2)}};
  EXPECT_EQ(decode(kHello + encoded(request), 1).requests.at(0), request);
  const Owned empty{Op::kSet, 0, {"", ""}};
  EXPECT_EQ(decode(kHello + encoded(empty), 1).requests.at(0), empty);
}

TEST(Wire, AnswersAreAsCaptured) {
  std::string bytes;
  put_number(5, bytes);
  EXPECT_EQ(bytes, unhex("0500000000000000"));
  bytes.clear();
  put_bytes("v1", bytes);
  EXPECT_EQ(bytes, unhex("0200000000000000 7631"));
  bytes.clear();
  put_nonce(0x212e, bytes);
  put_status(Status::kReady, bytes);
  put_status(Status::kNotReady, bytes);
  EXPECT_EQ(bytes, unhex("2e210000 00 01"));
  EXPECT_EQ(get_u32(bytes), 0x212eU);
}

}  // namespace
}  // namespace ddprun::store
