#include "launcher/doctor/port_owner.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/net/host_network.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

bool is_taken(std::uint16_t port) {
  const int one = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int family = one >= 0 ? AF_INET6 : AF_INET;  // IPv6 may be off
  const int fd = one >= 0 ? one : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  const int failed = family == AF_INET6
                         ? ::bind(fd, reinterpret_cast<const sockaddr*>(&v6), sizeof(v6))
                         : ::bind(fd, reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  const bool taken = failed != 0 && errno == EADDRINUSE;
  ::close(fd);
  return taken;
}

// The inode of the socket that listens there; 0: none does.
std::uint64_t listening_inode(std::uint16_t port) {
  for (const char* path : {kTcpTable, kTcp6Table}) {
    const std::string table = read_tcp_table(path).value_or("");
    const auto socket =
        find_tcp_socket(table, [port](const TcpSocket& one) { return listens_at(one, port); });
    if (socket) return socket->inode;
  }
  return 0;
}

bool has_socket(const fs::path& process, const std::string& link) {
  std::error_code failed;
  for (fs::directory_iterator fd(process / "fd", failed), end; !failed && fd != end;
       fd.increment(failed)) {
    std::error_code gone;
    if (fs::read_symlink(fd->path(), gone) == link) return true;
  }
  return false;
}

}  // namespace

std::string port_owner(std::uint16_t port) {
  if (!is_taken(port)) return {};
  const std::uint64_t inode = listening_inode(port);
  const std::string link = fmt::format("socket:[{}]", inode);
  std::error_code failed;
  for (fs::directory_iterator one("/proc", failed), end; inode != 0 && !failed && one != end;
       one.increment(failed)) {
    const std::string pid = one->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!has_socket(one->path(), link)) continue;
    std::string name;
    std::getline(std::ifstream(one->path() / "comm"), name);
    return fmt::format("pid {} ({})", pid, name);
  }
  return "another program";
}

}  // namespace ddprun::launcher
