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
#include <sstream>
#include <system_error>

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

// The inode of the socket that listens there: the tenth column of /proc/net/tcp, where the fourth is
// 0A (proc(5)).
std::string listening_inode(std::uint16_t port) {
  const std::string ending = fmt::format(":{:04X}", port);
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream columns(line);
      std::string number, local, remote, state, skipped, inode;
      columns >> number >> local >> remote >> state;
      if (state != "0A" || !local.ends_with(ending)) continue;
      for (int i = 0; i < 5; ++i) columns >> skipped;
      columns >> inode;
      return inode;
    }
  }
  return {};
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
  const std::string inode = listening_inode(port);
  const std::string link = fmt::format("socket:[{}]", inode);
  std::error_code failed;
  for (fs::directory_iterator one("/proc", failed), end; !inode.empty() && !failed && one != end;
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
