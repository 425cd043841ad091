#include "store/blocking_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "base/limit_hint.h"

namespace ddprun::store {
namespace {

// Read at a time for small answers; on the stack, so not much.
constexpr std::size_t kEarlyBytes = std::size_t{16} * 1024;

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

std::string error_text(int error) { return describe_errno(error); }

// Whole milliseconds until `deadline` for poll(2), at least 0. Rounded up: else poll would return
// just before the deadline, and the caller would see a time-out too early.
int milliseconds_left(Deadline deadline) {
  using std::chrono::milliseconds;
  const auto left =
      std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

// Asks for a numeric address first, so that an address never reaches a resolver. A resolver may be
// slow or down.
Result<AddressList> look_up(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  int failure = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  // With AI_NUMERICHOST this says only that `host` is not an address.
  if (failure == EAI_NONAME) {
    hints.ai_flags = AI_NUMERICSERV;
    failure = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  }
  if (failure != 0)
    return Error(ErrorCode::kNotFound, fmt::format("host {}: {}", host, ::gai_strerror(failure)));
  return AddressList(found, &::freeaddrinfo);
}

// -1 with errno if it fails. Non-blocking, since only poll(2) can end a wait at a deadline. Without
// Nagle's delay, since each request waits for its answer.
int open_socket(const addrinfo& address) {
  const int descriptor =
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  const int on = 1;
  if (descriptor >= 0) ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return descriptor;
}

Error lost(int error) { return {ErrorCode::kUnavailable, error_text(error)}; }

}  // namespace

BlockingSocket::BlockingSocket(BlockingSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      early_(std::move(other.early_)),
      early_begin_(std::exchange(other.early_begin_, 0)) {}

BlockingSocket& BlockingSocket::operator=(BlockingSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(early_, other.early_);
  std::swap(early_begin_, other.early_begin_);
  return *this;
}

BlockingSocket::~BlockingSocket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<BlockingSocket> BlockingSocket::connect(const std::string& host, std::uint16_t port,
                                               Deadline deadline) {
  const auto addresses = look_up(host, port);
  if (addresses.has_error()) return addresses.error();
  Error last(ErrorCode::kUnavailable, "no address");
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    BlockingSocket socket(open_socket(*address));
    if (socket.descriptor_ < 0) {
      last = lost(errno);
      continue;
    }
    if (::connect(socket.descriptor_, address->ai_addr, address->ai_addrlen) == 0) return socket;
    // A non-blocking connect(2) says EINPROGRESS while the peer has not answered yet.
    if (errno != EINPROGRESS) {
      last = lost(errno);
      continue;
    }
    auto connected = socket.finish_connect(deadline);
    if (connected.has_value()) return socket;
    last = connected.error();
  }
  return last;
}

// A socket becomes writable when its connect has ended, well or not. SO_ERROR has the result
// (connect(2), EINPROGRESS).
Result<void> BlockingSocket::finish_connect(Deadline deadline) const {
  if (auto ready = pause(kWritable, deadline); ready.has_error()) return ready;
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return lost(error);
  return {};
}

std::string BlockingSocket::local_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  auto* own = reinterpret_cast<sockaddr*>(&address);
  const bool known =
      ::getsockname(descriptor_, own, &length) == 0 &&
      ::getnameinfo(own, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? text.data() : "";
}

Result<void> BlockingSocket::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    // MSG_NOSIGNAL: a lost connection must be an error here, not a SIGPIPE that kills the program.
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (auto ready = pause(kWritable, deadline); ready.has_error()) return ready;
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
  return {};
}

// Small reads go through a buffer. An answer of 4,096 values has 8,192 parts, and each would cost a
// system call. Large reads go straight to `into`, to save the copy.
Result<void> BlockingSocket::receive(std::span<char> into, Deadline deadline) {
  into = into.subspan(take_early(into));
  while (!into.empty()) {
    std::array<char, kEarlyBytes> buffer;
    const bool direct = into.size() >= buffer.size();
    const auto received = receive_some(direct ? into : std::span<char>(buffer), deadline);
    if (received.has_error()) return received.error();
    if (direct) {
      into = into.subspan(*received);
    } else {
      early_.assign(buffer.data(), *received);
      into = into.subspan(take_early(into));
    }
  }
  return {};
}

std::size_t BlockingSocket::take_early(std::span<char> into) {
  const std::size_t taken = early_.copy(into.data(), into.size(), early_begin_);
  early_begin_ += taken;
  if (early_begin_ == early_.size()) {
    early_.clear();
    early_begin_ = 0;
  }
  return taken;
}

// Waits for at least one byte. Returns how many came.
Result<std::size_t> BlockingSocket::receive_some(std::span<char> into, Deadline deadline) const {
  for (;;) {
    const ssize_t received = ::recv(descriptor_, into.data(), into.size(), 0);
    if (received > 0) return static_cast<std::size_t>(received);
    if (received == 0) return Error(ErrorCode::kUnavailable, "the server closed the connection");
    if (errno == EAGAIN) {
      if (auto ready = pause(kReadable, deadline); ready.has_error()) return ready.error();
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
}

Result<void> BlockingSocket::pause(short events, Deadline deadline) const {
  if (wait_for(events, deadline)) return {};
  return Error(ErrorCode::kTimedOut, "the deadline passed");
}

bool BlockingSocket::wait_for(short events, Deadline deadline) const {
  static_assert(kReadable == POLLIN && kWritable == POLLOUT);
  for (;;) {
    pollfd watched{descriptor_, events, 0};
    const int left = milliseconds_left(deadline);
    const int ready = ::poll(&watched, 1, left);
    if (ready > 0) return true;
    // Only 0 ms left means that the time is up. `left` may have been cut to an int, so look again.
    if (ready == 0 && left == 0) return false;
    // The caller's next operation on the socket will say what is wrong.
    if (ready < 0 && errno != EINTR) return true;
  }
}

}  // namespace ddprun::store
