// What a refused connection says of who listened at the port.
#include "rendezvous/recovery/refusal.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr const char* kTable =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    "   0: 0100007F:72C5 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
    "   1: 0200000A:0016 0300000A:72C6 01 00000000:00000000 00:00000000 00000000     0\n"
    "  10: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n";

TEST(Refusal, FindsTheSocketsThatListen) {
  EXPECT_TRUE(lists_listener(kTable, 0x72C5));
  EXPECT_TRUE(lists_listener(kTable, 80));
  EXPECT_FALSE(lists_listener(kTable, 22)) << "it is connected";
  EXPECT_FALSE(lists_listener(kTable, 0x72C6)) << "it is a peer's";
  EXPECT_FALSE(lists_listener("", 80));
  EXPECT_FALSE(lists_listener("0: \n:0050\n0: 00000000:0050", 80)) << "no line of that file";
}

TEST(Refusal, OfThisHostIsKnownAtOnce) {
  boost::asio::io_context loop;
  for (const char* const address : {"127.0.0.1", "::1"}) {
    tcp::acceptor acceptor(loop);
    boost::system::error_code failed;
    const tcp::endpoint any(boost::asio::ip::make_address(address), 0);
    acceptor.open(any.protocol(), failed);
    if (!failed) acceptor.bind(any, failed);
    if (failed) continue;  // no IPv6 here
    const tcp::endpoint port = acceptor.local_endpoint();
    EXPECT_EQ(judge_refusal(port), Refusal::kClosed) << "bound, and nobody listens";
    acceptor.listen();
    EXPECT_EQ(judge_refusal(port), Refusal::kForged);
    acceptor.close();
    EXPECT_EQ(judge_refusal(port), Refusal::kClosed);
  }
}

// RFC 5737: nobody has this address.
TEST(Refusal, OfAnotherHostIsInDoubt) {
  EXPECT_EQ(judge_refusal({boost::asio::ip::make_address("192.0.2.1"), 80}), Refusal::kDoubt);
}

}  // namespace
}  // namespace ddprun::rendezvous
