// From --rdzv-endpoint and --rdzv-conf to what a client of etcd needs.
#include "rendezvous/election/find_etcd.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <string>

#include "tests/support/temporary_folder.h"

namespace ddprun::rendezvous {
namespace {

using FoundEtcd = Result<rendezvous::EtcdOptions>;
using FindEtcd = FolderTest;

FoundEtcd find_all(const EtcdPlan& plan,
                   std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  asio::io_context loop(1);
  std::optional<FoundEtcd> found;
  spawn(loop, "find",
        [](asio::io_context* on, EtcdPlan with, std::chrono::milliseconds most,
           std::optional<FoundEtcd>* result) -> asio::awaitable<void> {
          *result = co_await find_etcd(*on, std::move(with), most);
        }(&loop, plan, limit, &found));
  loop.run();
  return *found;
}

TEST_F(FindEtcd, ReadsThePasswordFromItsFile) {
  const std::string path = folder / "password";
  std::ofstream(path) << "sesame\n";
  ::chmod(path.c_str(), 0600);
  const EtcdPlan plan{.members = {{"10.0.0.1", 1}}, .username = "u", .password_file = path};
  const auto found = find_all(plan);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->password, "sesame");
  const auto none =
      find_all({.members = {{"10.0.0.1", 1}}, .username = "u", .password_file = folder / "none"});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("password_file=" + path.substr(0, path.rfind('/'))),
            std::string::npos);
}

TEST_F(FindEtcd, KeepsNamesAndFindsAddresses) {
  const auto found =
      find_all({.members = {{"localhost", 1}, {"10.0.0.1", 2}}, .username = "u", .password = "p"});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->members.size(), 2U);
  EXPECT_EQ(found->members[0].host, "localhost");
  EXPECT_EQ(found->members[0].addresses.size(), 1U);
  EXPECT_EQ(found->members[1].addresses, std::vector<std::string>{"10.0.0.1"});
  EXPECT_EQ(found->members[1].port, 2);
  EXPECT_EQ(found->username + found->password, "up");
  EXPECT_FALSE(found->with_tls);
  EXPECT_EQ(members_text(found->members), "localhost:1,10.0.0.1:2");
}

// Other nodes reach us there.
TEST_F(FindEtcd, FacesAMemberOnAnotherHost) {
  EXPECT_EQ(
      member_to_reach(*find_all({.members = {{"127.0.0.1", 1}, {"10.0.0.1", 2}}})).to_string(),
      "10.0.0.1");
  EXPECT_TRUE(member_to_reach(*find_all({.members = {{"127.0.0.1", 1}}})).is_loopback());
}

TEST_F(FindEtcd, ReadsFilesWhereTlsIsAskedFor) {
  const std::string path = folder / "ca.pem";
  std::ofstream(path) << "-----BEGIN CERTIFICATE-----\n";
  const EtcdPlan plan{.members = {{"127.0.0.1", 1}}, .with_tls = true, .ca_file = path};
  const auto found = find_all(plan);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ca, "-----BEGIN CERTIFICATE-----\n");
  EXPECT_TRUE(found->cert.empty() && found->key.empty());
}

TEST_F(FindEtcd, NamesAFileThatIsNoPem) {
  for (const std::string path : {"/dev/null", "/no/such/file", "/"}) {
    const auto found =
        find_all({.members = {{"127.0.0.1", 1}}, .with_tls = true, .key_file = path});
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().message(),
              "--rdzv-conf: key=" + path + ": expected a readable PEM file");
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
