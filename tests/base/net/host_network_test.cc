// The kernel's list of TCP sockets, and this host's addresses.
#include "base/net/host_network.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace ddprun {
namespace {

using boost::asio::ip::make_address;
using boost::asio::ip::tcp;

constexpr const char* kTable =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n"
    "   0: 0100007F:72C5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 "
    "1 x\n"
    "   1: 0200000A:0016 0300000A:72C6 01 00000000:00000000 00:00000000 00000000     0        0 12 "
    "1 x\n"
    "  10: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 13 "
    "1";

std::optional<TcpSocket> listener(std::string_view table, std::uint16_t port) {
  return find_tcp_socket(table, [&](const TcpSocket& one) { return listens_at(one, port); });
}

TEST(TcpSockets, AreFoundWithTheirUsers) {
  const auto first = listener(kTable, 0x72C5);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->local, "0100007F:72C5");
  EXPECT_EQ(first->remote, "00000000:0000");
  EXPECT_EQ(first->user, 1000U);
  EXPECT_EQ(first->inode, 11U);
  EXPECT_EQ(listener(kTable, 80)->inode, 13U) << "the last line has no end";
  EXPECT_FALSE(listener(kTable, 22)) << "it is connected";
  EXPECT_FALSE(listener(kTable, 0x72C6)) << "it is a peer's";
}

TEST(TcpSockets, AreNotFoundInWhatIsNoTable) {
  for (const char* text :
       {"", "\n\n", "0: \n:0050\n0: 00000000:0050", "   0: 00000000:0050 0:0 0A"})
    EXPECT_FALSE(listener(text, 80)) << text;
  EXPECT_EQ(read_tcp_table("/nowhere"), std::nullopt);
}

TEST(TcpSockets, OfThisProcessAreListed) {
  boost::asio::io_context loop;
  tcp::acceptor acceptor(loop, {make_address("127.0.0.1"), 0});
  const std::uint16_t port = acceptor.local_endpoint().port();
  const std::string table = read_tcp_table(kTcpTable).value_or("");
  ASSERT_TRUE(listener(table, port));
  EXPECT_EQ(listener(table, port)->user, ::geteuid());
  acceptor.close();
  EXPECT_FALSE(listener(read_tcp_table(kTcpTable).value_or(""), port));
}

// RFC 5737 and RFC 3849: nobody has these addresses.
TEST(OwnAddress, IsOneThatCanBeBound) {
  EXPECT_TRUE(is_own_address(make_address("127.0.0.1")));
  EXPECT_TRUE(is_own_address(make_address("0.0.0.0")));
  EXPECT_FALSE(is_own_address(make_address("198.51.100.1")));
  EXPECT_FALSE(is_own_address(make_address("2001:db8::1")));
}

}  // namespace
}  // namespace ddprun
