// Addresses that mean this host.
#include "base/net/address.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Address, IsLoopbackInEverySpelling) {
  for (const char* address : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "localhost", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(NamesThisHost, LocalhostAndEachLoopbackAddressDo) {
  for (const char* text : {"localhost", "127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(names_this_host(text)) << text;
  for (const char* text : {"", "10.0.0.1", "localhost.example", "127.0.0.1.example", "::2"})
    EXPECT_FALSE(names_this_host(text)) << text;
}

}  // namespace
}  // namespace ddprun
