#include "rendezvous/control/local_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace ddprun::rendezvous {
namespace {

// As /proc/net/unix has it.
std::string row(const std::string& name) {
  return "0000000000000000: 00000002 00000000 00010000 0001 01 4711 @" + name + "\n";
}

std::vector<std::string> found(const std::string& sockets, std::vector<std::string> addresses,
                               std::vector<bool> is_own) {
  std::vector<std::string> names;
  for (const LocalName& one : local_names(sockets, 29400, addresses, is_own))
    names.push_back(one.name.substr(one.name.rfind('/') + 1));
  return names;
}

TEST(LocalSocket, IsFoundByAddressAndPort) {
  const std::string sockets = "Num RefCount Protocol Flags Type St Inode Path\n" +
                              row("ddprun-operators/10.0.0.7/29400/other") +
                              row("ddprun-operators/::/29400/all") +
                              row("ddprun-operators/127.0.0.1/29400/exact") +
                              row("ddprun-operators/127.0.0.1/29401/no-port") + row("/run/other");
  EXPECT_EQ(found(sockets, {"127.0.0.1"}, {true}),
            (std::vector<std::string>{"exact", "all", "other"}));
  EXPECT_EQ(found(sockets, {"::1", "10.0.0.7"}, {false, true}),
            (std::vector<std::string>{"other", "all", "exact"}));
  EXPECT_EQ(found(sockets, {"10.0.0.8"}, {false}), std::vector<std::string>{}) << "another host's";
}

TEST(LocalSocket, NamesOfOthersAreNoMatter) {
  for (const std::string name :
       {"ddprun-operators/", "ddprun-operators/a", "ddprun-operators/a/b", "ddprun-operators/a/b/c",
        "ddprun-operators/a/29400x/c", "ddprun-operators//999999/c"})
    EXPECT_EQ(found(row(name), {"127.0.0.1"}, {true}), std::vector<std::string>{}) << name;
  EXPECT_EQ(found(row("ddprun-operators/a/29400/" + std::string(200, 'x')), {"::1"}, {true}),
            std::vector<std::string>{});
}

TEST(LocalSocket, NodesAreFoundByTheirPids) {
  const std::string sockets = row("ddprun-node/7/b") + row("ddprun-node/6/a") +
                              row("ddprun-node/7/b") + row("ddprun-node/x/c") +
                              row("ddprun-node/-1/d") + row("ddprun-node/") +
                              row("ddprun-node/8/" + std::string(200, 'x')) + row("/run/other");
  const auto names = node_socket_names(sockets);
  ASSERT_EQ(names.size(), 2U);
  EXPECT_EQ(names[0].pid, 6);
  EXPECT_EQ(names[1].name, "ddprun-node/7/b");
}

TEST(LocalSocket, TheSameUserAndRootGiveOrders) {
  EXPECT_TRUE(may_order(1000, 1000));
  EXPECT_TRUE(may_order(0, 1000));
  EXPECT_FALSE(may_order(1000, 0));
  EXPECT_FALSE(may_order(1001, 1000));
}

TEST(LocalSocket, IsConnectedTo) {
  const LocalName name = new_local_name("127.0.0.1", 1);
  EXPECT_NE(name.name, new_local_name("127.0.0.1", 1).name);
  const auto listening = listen_locally(name.name);
  ASSERT_TRUE(listening.has_value());
  EXPECT_TRUE(listen_locally(name.name).has_error());
  if (::geteuid() != 0) {
    const int connected = connect_locally({"127.0.0.1"}, 1);
    ASSERT_GE(connected, 0);
    EXPECT_EQ(peer_of(connected), ::geteuid());
    ::close(connected);
  }
  EXPECT_EQ(connect_locally({"203.0.113.1"}, 1), -1);
  ::close(*listening);
  EXPECT_EQ(connect_locally({"127.0.0.1"}, 1), -1);
}

}  // namespace
}  // namespace ddprun::rendezvous
