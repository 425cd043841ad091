#include "base/net/http/own_names.h"

#include <gtest/gtest.h>

namespace ddprun::http {
namespace {

const OwnNames kOwn{.host = "n1.lab.example",
                    .domains = {"default.svc.cluster.local", "cluster.local", "com"}};

TEST(OwnNames, AreAddressesLocalhostAndTheHostsName) {
  for (const char* header :
       {"", "127.0.0.1", "127.0.0.1:9400", "10.1.2.3:1", "[::1]", "[fe80::1]:9400", "localhost",
        "LocalHost:9400", "localhost.", "a.localhost:1", "n1", "N1:9400", "n1.lab.example",
        "N1.Lab.Example.:9400", "n1.trainer.default.svc.cluster.local:1", "n1.x.cluster.local"})
    EXPECT_TRUE(is_own_name(header, kOwn)) << header;
}

TEST(OwnNames, AreNoNamesOfOthers) {
  for (const char* header :
       {"evil.example", "evil.example:9400", "n1.evil.example", "n1.lab.example.evil.com",
        "xn1.lab.example", "localhost.evil.com", "127.0.0.1.evil.com", "evil.cluster.local",
        "n1.evilcluster.local", "n1.evil.com", "n2", " ", "[::1", "127.0.0.1@evil.com", "x\x1b"})
    EXPECT_FALSE(is_own_name(header, kOwn)) << header;
  EXPECT_FALSE(is_own_name("n1", OwnNames{}));
}

}  // namespace
}  // namespace ddprun::http
