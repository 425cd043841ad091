#include "rendezvous/grpc/connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;
constexpr auto kClear = Connections::Way::kClear;
constexpr auto kTls = Connections::Way::kTls;

// Both ends of connections; `accepted` are those that a host would hand to gRPC.
struct ConnectionsTest : testing::Test {
  int connect() {
    clients.emplace_back(loop).connect(acceptor.local_endpoint());
    accepted.push_back(acceptor.accept());
    return accepted.back().native_handle();
  }
  // Returns whether a peer of `accepted[index]` would find it ended.
  bool is_cut(std::size_t index) {
    char byte = 0;
    return ::recv(clients[index].native_handle(), &byte, 1, MSG_DONTWAIT) == 0;
  }
  static void add(Connections& connections, int fd, Connections::Way way) {
    connections.add(fd, way, Connections::address_of(fd));
  }
  static std::string peer(int fd) { return "fd:" + std::to_string(fd); }

  boost::asio::io_context loop;
  tcp::acceptor acceptor{loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  std::vector<tcp::socket> clients;
  std::vector<tcp::socket> accepted;
};

TEST_F(ConnectionsTest, KnowTheAddressesOfEach) {
  Connections connections(10);
  const int fd = connect();
  add(connections, fd, kClear);
  EXPECT_EQ(connections.observed(peer(fd)).address, "127.0.0.1");
  EXPECT_EQ(connections.observed(peer(fd)).reached_at, "127.0.0.1");
  for (const char* unknown : {"fd:99999", "fd:", "ipv4:127.0.0.1:80", ""})
    EXPECT_EQ(connections.observed(unknown).address, "") << unknown;
}

TEST_F(ConnectionsTest, ForgetThoseThatAreClosed) {
  Connections connections(1000);
  const int kept = connect();
  add(connections, kept, kClear);
  for (const auto way : {kClear, kTls}) {
    add(connections, connect(), way);
    accepted.back().close();
    connections.forget_closed();
    EXPECT_EQ(connections.size(), 1U);
  }
  // A caller that only adds does not keep them either.
  for (int i = 0; i < 500; ++i) {
    add(connections, connect(), i % 2 == 0 ? kClear : kTls);
    accepted.back().close();
  }
  EXPECT_LT(connections.size(), 100U);
  EXPECT_EQ(connections.observed(peer(kept)).address, "127.0.0.1");
}

TEST_F(ConnectionsTest, KnowThoseWithTlsByTheirPeer) {
  Connections connections(1);
  const int fd = connect();
  const auto name = [this](std::size_t client) {
    return "ipv4:127.0.0.1:" + std::to_string(clients[client].local_endpoint().port());
  };
  add(connections, fd, kTls);
  EXPECT_EQ(connections.observed(name(0)).address, "127.0.0.1");
  EXPECT_EQ(connections.observed(peer(fd)).address, "");
  connections.admitted(name(0));
  for (int i = 0; i < 2; ++i) add(connections, connect(), kTls);
  EXPECT_FALSE(is_cut(0));
  EXPECT_TRUE(is_cut(1));
  // The next connection has the number of one that ended, and another name.
  clients.emplace_back(loop).connect(acceptor.local_endpoint());
  const int ended = accepted[2].native_handle();
  accepted[2].close();
  accepted.push_back(acceptor.accept());
  ASSERT_EQ(accepted[3].native_handle(), ended);
  add(connections, accepted[3].native_handle(), kTls);
  EXPECT_EQ(connections.observed(name(2)).address, "");
  EXPECT_EQ(connections.observed(name(3)).address, "127.0.0.1");
}

TEST_F(ConnectionsTest, KnowAPeerOfIpv6) {
  tcp::acceptor acceptor6(loop);
  boost::system::error_code failed;
  acceptor6.open(tcp::v6(), failed);
  if (!failed) acceptor6.bind({boost::asio::ip::address_v6::loopback(), 0}, failed);
  if (failed) GTEST_SKIP() << "no IPv6 here: " << failed.message();
  acceptor6.listen();
  tcp::socket client(loop);
  client.connect(acceptor6.local_endpoint());
  tcp::socket server = acceptor6.accept();
  Connections connections(1);
  add(connections, server.native_handle(), kTls);
  EXPECT_EQ(connections.observed("ipv6:%5B::1%5D:" + std::to_string(client.local_endpoint().port()))
                .address,
            "::1");
}

TEST_F(ConnectionsTest, BeyondTheLimitTheOldestUnauthenticatedPeerIsCut) {
  Connections connections(2);
  for (int i = 0; i < 4; ++i) add(connections, connect(), kClear);
  EXPECT_TRUE(is_cut(0) && is_cut(1));
  EXPECT_FALSE(is_cut(2) || is_cut(3));
}

TEST_F(ConnectionsTest, NodesDoNotCountAndAreNeverCut) {
  Connections connections(2);
  const int node = connect();
  add(connections, node, kClear);
  connections.admitted(peer(node));
  for (int i = 0; i < 3; ++i) add(connections, connect(), kClear);
  EXPECT_FALSE(is_cut(0));
  EXPECT_TRUE(is_cut(1));
  EXPECT_FALSE(is_cut(2) || is_cut(3));
}

TEST_F(ConnectionsTest, ThoseThatEndedMakeRoom) {
  Connections connections(2);
  for (int i = 0; i < 2; ++i) add(connections, connect(), kClear);
  accepted[1].close();
  add(connections, connect(), kClear);  // with the number of the one that ended
  EXPECT_EQ(accepted.size(), 3U);
  EXPECT_FALSE(is_cut(0) || is_cut(2));
  const int ended = accepted[2].native_handle();
  accepted[2].close();
  const int other = ::dup(acceptor.native_handle());  // somebody else has the number now
  EXPECT_EQ(other, ended);
  add(connections, connect(), kClear);
  EXPECT_FALSE(is_cut(0) || is_cut(3));
  ::close(other);
}

}  // namespace
}  // namespace ddprun::rendezvous
