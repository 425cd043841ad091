#include "agent/standstill/socket_bytes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "base/file_handle.h"

namespace ddprun::agent {
namespace {

TEST(SocketBytes, CountWhatComesByRecv) {
  const FileHandle listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), generic, size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &size), 0);
  const FileHandle sends(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(sends.get(), generic, size), 0);
  const FileHandle receives(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));

  const SocketBytes before = socket_bytes();
  if (before.empty()) GTEST_SKIP() << "the kernel tells nothing of sockets";
  const std::uint64_t at_first = bytes_of_sockets(::getpid(), before);
  std::vector<char> bytes(100'000);
  ASSERT_EQ(::send(sends.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  ASSERT_EQ(::recv(receives.get(), bytes.data(), bytes.size(), MSG_WAITALL), std::ssize(bytes));
  // Both ends are this process's. The acknowledgement may be on its way.
  EXPECT_GE(bytes_of_sockets(::getpid(), socket_bytes()), at_first + bytes.size());
}

TEST(SocketBytes, AProcessThatIsGoneHasNone) {
  EXPECT_EQ(bytes_of_sockets(-1, socket_bytes()), 0U);
}

}  // namespace
}  // namespace ddprun::agent
