// A refused connection, and the process that listened at the port.
#include "base/net/refusal.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

namespace ddprun {
namespace {

using boost::asio::ip::tcp;

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
}  // namespace ddprun
