// The addresses that are this host's own.
#include "base/net/addresses.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/address.hpp>

namespace ddprun {
namespace {

using boost::asio::ip::make_address;

TEST(Addresses, LoopbackAndUnspecifiedAreLocalOthersOfDocumentationAreNot) {
  EXPECT_TRUE(is_local_address(make_address("127.0.0.1")));
  EXPECT_TRUE(is_local_address(make_address("127.9.9.9")));
  EXPECT_TRUE(is_local_address(make_address("::1")));
  EXPECT_TRUE(is_local_address(make_address("0.0.0.0")));
  EXPECT_FALSE(is_local_address(make_address("192.0.2.1")));    // RFC 5737
  EXPECT_FALSE(is_local_address(make_address("2001:db8::1")));  // RFC 3849
}

TEST(Addresses, AnInterfaceIsFoundByItsAddress) {
  EXPECT_EQ(interface_with(loopback_address()), "lo");
  EXPECT_EQ(interface_with(make_address("192.0.2.1")), "");
}

TEST(Addresses, ForThisHostIsTheAddressItself) {
  EXPECT_EQ(local_address_for(make_address("127.0.0.5")), make_address("127.0.0.5"));
  EXPECT_TRUE(is_local_address(local_address_for(make_address("192.0.2.1"))));
}

TEST(Addresses, ThatOthersMaySeeUsByIsOurs) {
  const auto outside = outside_address();
  EXPECT_TRUE(is_local_address(outside));
  EXPECT_FALSE(outside.is_unspecified());
}

TEST(Addresses, AHostHasAName) { EXPECT_FALSE(host_name().empty()); }

}  // namespace
}  // namespace ddprun
