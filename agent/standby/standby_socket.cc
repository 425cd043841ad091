#include "agent/standby/standby_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/limit_hint.h"

namespace ddprun::agent {
namespace {

// Returns whether the socket is ready before `until`. A signal's handler may interrupt the wait.
bool await_ready(int socket, short event, Time until) {
  pollfd ready{socket, event, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now()).count();
    const int found = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 1)));
    if (found >= 0 || errno != EINTR) return found > 0;
  }
}

}  // namespace

Result<FileHandle> connect_standby(boost::asio::local::stream_protocol::socket& socket) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error(ErrorCode::kSystem, fmt::format("make a socket: {}", describe_errno(errno)));
  boost::system::error_code failed;
  socket.assign({}, ends[0], failed);
  return FileHandle(ends[1]);
}

bool send_all(int socket, std::string_view text, Time until) {
  while (!text.empty()) {
    if (!await_ready(socket, POLLOUT, until)) return false;
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string await_answer(int socket, std::size_t most, Time until) {
  std::string said(most, '\0');
  if (!await_ready(socket, POLLIN, until)) return "";
  const ssize_t size = ::read(socket, said.data(), said.size());
  said.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return said;
}

}  // namespace ddprun::agent
