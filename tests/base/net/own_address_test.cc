// The address that a daemon announces to the others of its group.
#include "base/net/own_address.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

std::string announced(const std::string& listens_at, const char* etcd, const char* local) {
  const auto address = own_address(listens_at, boost::asio::ip::make_address(etcd),
                                   boost::asio::ip::make_address(local));
  if (!address) return address.error().message();
  return address->value_or("none yet");
}

TEST(OwnAddress, IsTheLocalOneForEtcd) {
  EXPECT_EQ(announced("0.0.0.0", "10.0.0.9", "10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(announced("::", "fd00::9", "fd00::1"), "fd00::1");
  EXPECT_EQ(announced("10.1.0.1", "10.0.0.9", "10.0.0.1"), "10.1.0.1") << "as it was given";
}

TEST(OwnAddress, MayBeLoopbackWhereEtcdIs) {
  EXPECT_EQ(announced("0.0.0.0", "127.0.0.1", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(announced("127.0.0.1", "127.0.0.1", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(announced("::1", "::1", "::1"), "::1");
}

TEST(OwnAddress, IsAwaitedWhereThereIsNoWayToEtcdYet) {
  EXPECT_EQ(announced("0.0.0.0", "10.0.0.9", "127.0.0.1"), "none yet");
}

TEST(OwnAddress, IsRefusedWhereNoOtherHostReachesIt) {
  EXPECT_EQ(announced("127.0.0.1", "10.0.0.9", "10.0.0.1"),
            "--listen=127.0.0.1: expected an address that other hosts reach, as etcd has one "
            "(10.0.0.9)");
}

}  // namespace
}  // namespace ddprun
