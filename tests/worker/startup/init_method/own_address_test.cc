#include "worker/startup/init_method/own_address.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::worker {
namespace {

const std::vector<InterfaceAddress> kHost{{"lo", "127.0.0.1", true},
                                          {"eth0", "10.0.0.7", false},
                                          {"ib0", "10.1.0.7", false},
                                          {"eth0", "fe80::7%eth0", false}};

std::string chosen(const AddressPreference& preference) {
  const auto address = choose_address(kHost, preference);
  return address ? *address : "error: " + address.error().message();
}

TEST(OwnAddress, IsTheOneThatReachesTheStore) {
  EXPECT_EQ(chosen({.interfaces = {}, .towards_store = "10.1.0.7"}), "10.1.0.7");
}

// On the master itself its own name may lead to loopback.
TEST(OwnAddress, IsNotLoopback) {
  EXPECT_EQ(chosen({.interfaces = {}, .towards_store = "127.0.0.1"}), "10.0.0.7");
  EXPECT_EQ(chosen({.interfaces = {}, .towards_store = "127.0.1.1"}), "10.0.0.7");
  EXPECT_EQ(chosen({.interfaces = {}, .towards_store = ""}), "10.0.0.7");
}

TEST(OwnAddress, IsLoopbackWhereAllRanksAreHere) {
  EXPECT_EQ(chosen({.interfaces = {}, .towards_store = "127.0.0.1", .one_host = true}),
            "127.0.0.1");
}

TEST(OwnAddress, IsThatOfTheInterfaceThatIsNamed) {
  EXPECT_EQ(chosen({.interfaces = "ib0", .towards_store = "10.0.0.7"}), "10.1.0.7");
  EXPECT_EQ(chosen({.interfaces = "ib9,ib0", .towards_store = "10.0.0.7"}), "10.1.0.7");
  EXPECT_EQ(chosen({.interfaces = "lo", .towards_store = "10.0.0.7"}), "127.0.0.1");
}

TEST(OwnAddress, AWrongNameIsRefused) {
  EXPECT_EQ(chosen({.interfaces = "eth7", .towards_store = "10.0.0.7"}),
            "error: GLOO_SOCKET_IFNAME=eth7: no such interface has an address; these have: lo, "
            "eth0, ib0");
}

TEST(OwnAddress, LoopbackAloneReachesNobody) {
  const auto address = choose_address({kHost[0]}, {.interfaces = {}, .towards_store = "127.0.0.1"});
  ASSERT_FALSE(address.has_value());
  EXPECT_EQ(address.error().code(), ErrorCode::kNotFound);
}

TEST(OwnAddress, ThisHostHasLoopback) {
  const auto all = interface_addresses();
  ASSERT_TRUE(all.has_value());
  const auto loopback = std::ranges::find(*all, "127.0.0.1", &InterfaceAddress::address);
  ASSERT_NE(loopback, all->end());
  EXPECT_TRUE(loopback->is_loopback);
}

}  // namespace
}  // namespace ddprun::worker
