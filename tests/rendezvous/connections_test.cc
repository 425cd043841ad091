#include "rendezvous/connections.h"

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

// Both ends of connections; `accepted` are those that a host would hand to gRPC.
struct ConnectionsTest : testing::Test {
  int connect() {
    clients.emplace_back(loop).connect(acceptor.local_endpoint());
    accepted.push_back(acceptor.accept());
    return accepted.back().native_handle();
  }
  // Whether a peer of `accepted[index]` would find it ended.
  bool is_cut(std::size_t index) {
    char byte = 0;
    return ::recv(clients[index].native_handle(), &byte, 1, MSG_DONTWAIT) == 0;
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
  connections.add(fd);
  EXPECT_EQ(connections.observed(peer(fd)).address, "127.0.0.1");
  EXPECT_EQ(connections.observed(peer(fd)).reached_at, "127.0.0.1");
  for (const char* unknown : {"fd:99999", "fd:", "ipv4:127.0.0.1:80", ""})
    EXPECT_EQ(connections.observed(unknown).address, "") << unknown;
}

TEST_F(ConnectionsTest, BeyondTheLimitTheOldestStrangerIsCut) {
  Connections connections(2);
  for (int i = 0; i < 4; ++i) connections.add(connect());
  EXPECT_TRUE(is_cut(0) && is_cut(1));
  EXPECT_FALSE(is_cut(2) || is_cut(3));
}

TEST_F(ConnectionsTest, NodesDoNotCountAndAreNeverCut) {
  Connections connections(2);
  const int node = connect();
  connections.add(node);
  connections.let_in(peer(node));
  for (int i = 0; i < 3; ++i) connections.add(connect());
  EXPECT_FALSE(is_cut(0));
  EXPECT_TRUE(is_cut(1));
  EXPECT_FALSE(is_cut(2) || is_cut(3));
}

TEST_F(ConnectionsTest, ThoseThatEndedMakeRoom) {
  Connections connections(2);
  for (int i = 0; i < 2; ++i) connections.add(connect());
  accepted[1].close();
  connections.add(connect());  // with the number of the one that ended
  EXPECT_EQ(accepted.size(), 3U);
  EXPECT_FALSE(is_cut(0) || is_cut(2));
  const int ended = accepted[2].native_handle();
  accepted[2].close();
  const int other = ::dup(acceptor.native_handle());  // somebody else has the number now
  EXPECT_EQ(other, ended);
  connections.add(connect());
  EXPECT_FALSE(is_cut(0) || is_cut(3));
  ::close(other);
}

}  // namespace
}  // namespace ddprun::rendezvous
