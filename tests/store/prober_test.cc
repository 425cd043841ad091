// Bytes that no client should send, against a running server: each costs its own connection and
// nothing else.
#include <gtest/gtest.h>

#include "tests/store/served_store.h"

namespace ddprun::store {
namespace {

std::string u64(std::uint64_t number) {
  std::string bytes;
  put_number(static_cast<std::int64_t>(number), bytes);
  return bytes;
}

// Sends `bytes` after the handshake and expects the server to close, and to go on serving.
void expect_refused(ServedStore& store, const std::string& bytes) {
  Client bystander = store.client();
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(bytes);
  EXPECT_TRUE(peer.is_closed());
  EXPECT_TRUE(bystander.ping().has_value());
  EXPECT_EQ(bystander.num_keys().value(), 0);
}

TEST(Prober, TooLongAKeyIsClosed) {
  ServedStore store;
  expect_refused(store, request(Op::kSet, {std::string(kKeyBytes + 1, 'k'), "v"}));
}

TEST(Prober, TooLongAValueIsClosed) {
  ServedStore store(StoreLimits{.value_bytes = 1000});
  expect_refused(store, request(Op::kSet, {"k", std::string(1001, 'v')}));
}

TEST(Prober, TheLongestKeyAndValueOfPyTorchAreTaken) {
  ServedStore store;
  Client client = store.client();
  const std::string key(kKeyBytes, 'k');
  const std::string value(8 * kMiB, 'v');
  ASSERT_TRUE(client.set(key, value).has_value());
  EXPECT_EQ(client.get(key).value(), value);
}

TEST(Prober, TooManyKeysAreClosed) {
  ServedStore store;
  for (const char* op : {"05", "06", "0a", "0b"})
    expect_refused(store, unhex(op) + u64(kKeysPerRequest + 1));
}

TEST(Prober, TooLargeARequestIsClosed) {
  ServedStore store(StoreLimits{.request_bytes = 10'000});
  expect_refused(store, request(Op::kMultiGet, {std::string(6000, 'a'), std::string(6000, 'b')}));
}

TEST(Prober, AbsurdLengthsAreClosedAtTheHeader) {
  ServedStore store;
  for (const char* op : {"01", "03", "06", "0b", "0e"})
    expect_refused(store, unhex(op) + u64(std::uint64_t{1} << 62));
}

TEST(Prober, AValidateInTwoSegmentsWorks) {
  ServedStore store;
  RawPeer peer(store.port());
  peer.send(unhex("00 ce"));
  store.let_the_server_read();
  peer.send(unhex("f7853c"));
  EXPECT_TRUE(peer.answers_ping());
}

TEST(Prober, AByteAtATimeWorks) {
  ServedStore store;
  RawPeer peer(store.port());
  const std::string bytes =
      unhex("00 cef7853c") + request(Op::kSet, {"k", "value"}) + request(Op::kGet, {"k"});
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    peer.send(bytes.substr(i, 1));
    if (i % 16 == 0) store.let_the_server_read();
  }
  EXPECT_EQ(peer.read(13), unhex("0500000000000000") + "value");
}

TEST(Prober, AValueLongAfterItsKeyIsStored) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  const std::string bytes = request(Op::kSet, {"key", "value"});
  peer.send(bytes.substr(0, 12));
  store.let_the_server_read();
  peer.send(bytes.substr(12));
  EXPECT_TRUE(peer.answers_ping());
  EXPECT_EQ(store.client().get("key").value(), "value");
}

TEST(Prober, AWrongMagicIsClosed) {
  ServedStore store;
  RawPeer peer(store.port());
  peer.send(unhex("00 cef7853d"));
  EXPECT_TRUE(peer.is_closed());
}

TEST(Prober, ARequestBeforeValidateIsClosedAndNotExecuted) {
  ServedStore store;
  RawPeer peer(store.port());
  peer.send(request(Op::kSet, {"k", "v"}));
  EXPECT_TRUE(peer.is_closed());
  EXPECT_EQ(store.client().num_keys().value(), 0);
}

TEST(Prober, ASecondValidateIsClosed) {
  ServedStore store;
  expect_refused(store, unhex("00 cef7853c"));
}

TEST(Prober, AnHttpRequestIsClosed) {
  ServedStore store;
  RawPeer peer(store.port());
  peer.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(peer.is_closed());
  EXPECT_TRUE(store.client().ping().has_value());
}

TEST(Prober, AnUnknownOpcodeIsClosed) {
  ServedStore store;
  for (const char* op : {"13", "2a", "ff"}) expect_refused(store, unhex(op));
}

TEST(Prober, AnAddToTextIsClosedAndTheTextStays) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(request(Op::kSet, {"k", "text"}) + request(Op::kAdd, {"k"}, 1));
  EXPECT_TRUE(peer.is_closed());
  EXPECT_EQ(store.client().get("k").value(), "text");
}

TEST(Prober, RequestsBeforeABadOneAreAnswered) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(request(Op::kAdd, {"n"}, 3) + unhex("ff"));
  EXPECT_EQ(peer.read(8), u64(3));
  EXPECT_TRUE(peer.is_closed());
}

TEST(Prober, ARequestThatStallsHalfWayDelaysNobody) {
  ServedStore store;
  Client bystander = store.client();
  RawPeer peer = RawPeer::greeted(store.port());
  const std::string bytes = request(Op::kSet, {"k", std::string(100'000, 'v')});
  peer.send(bytes.substr(0, 50'000));
  store.let_the_server_read();
  EXPECT_EQ(bystander.add("n", 1).value(), 1);
  peer.send(bytes.substr(50'000));
  EXPECT_TRUE(peer.answers_ping());
  EXPECT_EQ(bystander.get("k").value().size(), 100'000U);
}

TEST(Prober, AHalfCloseIsAnsweredThenClosed) {
  ServedStore store;
  Client other = store.client();
  ASSERT_TRUE(other.set("big", std::string(4 * kMiB, 'b')).has_value());
  ASSERT_TRUE(other.ping().has_value());
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(request(Op::kGet, {"big"}) + request(Op::kAdd, {"n"}, 7));
  peer.half_close();
  EXPECT_EQ(peer.read(8 + 4 * kMiB).size(), 8 + 4 * kMiB);
  EXPECT_EQ(peer.read(8), u64(7));
  EXPECT_TRUE(peer.is_closed());
}

TEST(Prober, AWaitOnAFilledQueueAndAMissingKeyReturns) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(request(Op::kQueuePush, {"q", "x"}) + request(Op::kWait, {"q", "k"}));
  EXPECT_TRUE(peer.answers_ping());  // ahead of the wait's byte
  ASSERT_TRUE(store.client().set("k", "v").has_value());
  EXPECT_EQ(peer.read(1), unhex("00"));
}

TEST(Prober, ASelfMadeWakeComesBehindItsRequest) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(request(Op::kWait, {"n"}) + request(Op::kAdd, {"n"}, 2) + request(Op::kNumKeys, {}));
  EXPECT_EQ(peer.read(17), u64(2) + unhex("00") + u64(1));
}

TEST(Prober, CancelIsAnsweredWithAndWithoutAWait) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  peer.send(unhex("0c") + request(Op::kWait, {"k"}) + unhex("0c"));
  EXPECT_EQ(peer.read(2), unhex("01 01"));
  ASSERT_TRUE(store.client().set("k", "v").has_value());
  EXPECT_TRUE(peer.answers_ping());  // and not a late 00 before it
}

TEST(Prober, ABarrierReleasesAllArrivers) {
  ServedStore store;
  RawPeer first = RawPeer::greeted(store.port());
  first.send(unhex("12 0300000000000000 2f6262 0200000000000000"));
  EXPECT_TRUE(first.answers_ping());
  RawPeer second = RawPeer::greeted(store.port());
  second.send(unhex("12 0300000000000000 2f6262 0200000000000000"));
  EXPECT_EQ(second.read(1), unhex("00"));
  EXPECT_EQ(first.read(1), unhex("00"));
}

}  // namespace
}  // namespace ddprun::store
