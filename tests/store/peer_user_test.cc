// The user at the other end: real connections over loopback, and processes of other users.
#include "store/peer_user.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>

#include "base/file_handle.h"

namespace ddprun::store {
namespace {

using Kind = PeerUser::Kind;

// A listener on loopback, and connections to it.
class PeerUserTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    listener = FileHandle(::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (GetParam() == AF_INET) {
      auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      *v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
      bytes = sizeof(*v4);
    } else {
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
      *v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
      bytes = sizeof(*v6);
    }
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0)
      GTEST_SKIP() << "this host has no such loopback address";
    ASSERT_EQ(::listen(listener.get(), 16), 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  }
  FileHandle connect() const {
    FileHandle client(::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    return client;
  }
  FileHandle accept() const { return FileHandle(::accept(listener.get(), nullptr, nullptr)); }

  FileHandle listener;
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  PeerUsers users;
};

TEST_P(PeerUserTest, IsOurselves) {
  const FileHandle client = connect();
  const FileHandle served = accept();
  const PeerUser user = users.of(served.get());
  EXPECT_EQ(user.kind, Kind::kUser);
  EXPECT_EQ(user.user, ::geteuid());
}

TEST_P(PeerUserTest, IsAnotherUserAlsoWhenThatOneHasSentAndIsGone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  std::array<int, 2> hold{};
  ASSERT_EQ(::pipe(hold.data()), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(hold[1]);
    if (::setuid(65534) != 0) ::_exit(1);
    const FileHandle client = connect();
    [[maybe_unused]] const auto sent = ::write(client.get(), "x", 1);
    char end = 0;
    [[maybe_unused]] const auto told = ::read(hold[0], &end, 1);
    ::_exit(0);
  }
  const FileHandle served = accept();
  const PeerUser user = users.of(served.get());
  EXPECT_EQ(user.kind, Kind::kUser);
  EXPECT_EQ(user.user, 65534U);
  ::close(hold[1]);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(users.of(served.get()).kind, Kind::kNobody);
  ::close(hold[0]);
}

// An IPv4 address of this host that is not loopback; port 0. Nothing if it has none.
std::optional<sockaddr_in> outside_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  std::optional<sockaddr_in> found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in v4{};
    std::memcpy(&v4, one->ifa_addr, sizeof(v4));
    if (ntohl(v4.sin_addr.s_addr) >> 24U != IN_LOOPBACKNET) found = v4;
  }
  ::freeifaddrs(list);
  return found;
}

TEST_P(PeerUserTest, IsKnownFromEachAddressOfThisHost) {
  const auto outside = outside_address();
  if (GetParam() != AF_INET || !outside) GTEST_SKIP() << "needs an IPv4 address beside loopback";
  FileHandle client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(client.get(), reinterpret_cast<const sockaddr*>(&*outside), sizeof(*outside)),
            0);
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  const FileHandle served = accept();
  EXPECT_EQ(users.of(served.get()).kind, Kind::kUser);
  client.close();
  EXPECT_EQ(users.of(served.get()).kind, Kind::kNobody);
}

INSTANTIATE_TEST_SUITE_P(OfBothFamilies, PeerUserTest, ::testing::Values(AF_INET, AF_INET6));

TEST(PeerUserTable, FindsTheLineOfBothAddresses) {
  const std::string_view table =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 "
      "11 1 x\n"
      "   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1001        0 "
      "12 1 x\n"
      "   2: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 "
      "13 1 x\n"
      "   3: 0100007F:D432 0100007F:1F90 06 00000000:00000000 03:00000000 00000000     0        0 "
      "0 3 x\n";
  const PeerUser user = user_in_table(table, "0100007F:D431", "0100007F:1F90");
  EXPECT_EQ(user.kind, Kind::kUser);
  EXPECT_EQ(user.user, 1002U);
  EXPECT_EQ(user_in_table(table, "0100007F:D432", "0100007F:1F90").kind, Kind::kNobody)
      << "closed: no process has it";
  EXPECT_EQ(user_in_table(table, "0100007F:D433", "0100007F:1F90").kind, Kind::kNobody);
  EXPECT_EQ(user_in_table("", "a", "b").kind, Kind::kNobody);
}

}  // namespace
}  // namespace ddprun::store
