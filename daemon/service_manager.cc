#include "daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "base/file_handle.h"

namespace ddprun::daemon {

bool tell_service_manager(const std::string& socket, const std::string& state) {
  if (socket.empty()) return true;
  sockaddr_un address{};
  if (socket.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket.front() == '@') address.sun_path[0] = '\0';  // an abstract address (unix(7))
  const FileHandle file(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (file.get() < 0) return false;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const auto sent = ::sendto(file.get(), state.data(), state.size(), MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address), length);
  return sent == static_cast<ssize_t>(state.size());
}

}  // namespace ddprun::daemon
