#include "bench/store_load.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <system_error>
#include <utility>

#include "bench/program.h"
#include "store/wire.h"

namespace ddprun::bench {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 18;
constexpr int kEvents = 256;
thread_local std::array<char, kReadBytes> scratch;

[[noreturn]] void fail_with_errno(std::string_view what) {
  fail(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

std::string encoded(store::Op op, std::vector<std::string_view> fields, std::int64_t number = 0) {
  std::string bytes;
  store::encode({.op = op, .number = number, .fields = fields}, bytes);
  return bytes;
}

std::string validate() { return encoded(store::Op::kValidate, {}, store::kMagic); }

int new_socket(int flags) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  const int on = 1;
  if (fd < 0 || ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
    fail_with_errno("socket");
  return fd;
}

// May return before the connection is there, if the socket does not block.
void connect_to(int fd, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0 &&
      errno != EINPROGRESS)
    fail_with_errno("connect");
}

}  // namespace

void fail(std::string_view why) {
  fmt::print(stderr, "bench-store: {}\n", why);
  std::exit(1);
}

double quantile(std::vector<double>& times, double share) {
  std::ranges::sort(times);
  return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
}

std::string get(std::string_view key) { return encoded(store::Op::kGet, {key}); }
std::string set(std::string_view key, std::string_view value) {
  return encoded(store::Op::kSet, {key, value});
}
std::string add(std::string_view key) { return encoded(store::Op::kAdd, {key}, 1); }
std::string check(std::string_view key) { return encoded(store::Op::kCheck, {key}); }
std::string wait(std::string_view key) { return encoded(store::Op::kWait, {key}); }
std::string ping() { return encoded(store::Op::kPing, {}, 7); }

std::string multi_set(int pairs, std::string_view value) {
  std::vector<std::string> keys;
  for (int i = 0; i < pairs; ++i) keys.push_back(fmt::format("multi-set-key-{:05}", i));
  std::vector<std::string_view> fields;
  for (const std::string& key : keys) {
    fields.push_back(key);
    fields.push_back(value);
  }
  return encoded(store::Op::kMultiSet, fields);
}

// ---- one connection ----

Socket::Socket(std::uint16_t port, Greeting greeting) : fd_(new_socket(0)) {
  connect_to(fd_, port);
  if (greeting == Greeting::kValidate) send(validate());
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) fail_with_errno("send");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void Socket::await(std::size_t bytes) {
  while (bytes > 0) {
    const auto got = ::recv(fd_, scratch.data(), std::min(bytes, scratch.size()), 0);
    if (got == 0) fail("the server ended a connection");
    if (got < 0) fail_with_errno("recv");
    bytes -= static_cast<std::size_t>(got);
  }
}

void Socket::ask(std::string_view request, std::size_t answer_bytes) {
  send(request);
  await(answer_bytes);
}

bool Socket::discard() {
  std::array<char, 1 << 16> bytes;
  return ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0;
}

void Socket::await_end() {
  while (::recv(fd_, scratch.data(), scratch.size(), 0) > 0) {
  }
}

// ---- many connections ----

struct Load::Connection {
  int fd = -1;
  std::size_t read = 0;  // bytes of answers that are not used up
  std::deque<Clock::time_point> asked;
};

Load::Load(std::uint16_t port, int connections)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), connections_(static_cast<std::size_t>(connections)) {
  if (epoll_ < 0) fail_with_errno("epoll_create1");
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    connections_[i].fd = new_socket(SOCK_NONBLOCK);
    connect_to(connections_[i].fd, port);
    watch(i, EPOLL_CTL_ADD, EPOLLOUT);
  }
  std::size_t connected = 0;
  while (connected < connections_.size()) {
    each_event(
        [&](std::size_t i) {
          send(connections_[i], validate() + ping());
          watch(i, EPOLL_CTL_MOD, EPOLLIN);
          ++connected;
        },
        EPOLLOUT);
  }
  await_all(4);
}

Load::~Load() {
  for (const Connection& connection : connections_) ::close(connection.fd);
  ::close(epoll_);
}

void Load::watch(std::size_t i, int operation, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = i;
  if (::epoll_ctl(epoll_, operation, connections_[i].fd, &event) < 0) fail_with_errno("epoll_ctl");
}

// Waits, and lets `act` handle each connection that has one of `events`. Bytes that can be read are
// read before, and counted.
template <typename Act>
void Load::each_event(Act act, std::uint32_t events) {
  std::array<epoll_event, kEvents> found;
  const int count = ::epoll_wait(epoll_, found.data(), kEvents, -1);
  if (count < 0 && errno != EINTR) fail_with_errno("epoll_wait");
  for (int n = 0; n < count; ++n) {
    const epoll_event& event = found[static_cast<std::size_t>(n)];
    Connection& connection = connections_[event.data.u64];
    if ((event.events & EPOLLIN) != 0) {
      const auto got = ::recv(connection.fd, scratch.data(), scratch.size(), 0);
      if (got == 0) fail("the server ended a connection");
      if (got < 0) fail_with_errno("recv");
      connection.read += static_cast<std::size_t>(got);
    }
    if ((event.events & events) != 0) act(event.data.u64);
  }
}

// All that is sent here fits the buffers of the kernel.
void Load::send(const Connection& connection, std::string_view bytes) {
  if (::send(connection.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(bytes.size()))
    fail_with_errno("send");
}

void Load::send_all(std::string_view bytes) {
  for (const Connection& connection : connections_) send(connection, bytes);
}

void Load::await_all(std::size_t bytes) {
  std::vector<bool> done;
  for (const Connection& connection : connections_) done.push_back(connection.read >= bytes);
  auto waiting = std::ranges::count(done, false);
  while (waiting > 0) {
    each_event(
        [&](std::size_t i) {
          if (done[i] || connections_[i].read < bytes) return;
          done[i] = true;
          --waiting;
        },
        EPOLLIN);
  }
  for (Connection& connection : connections_) connection.read -= bytes;
}

void Load::close_and_wait() {
  for (const Connection& connection : connections_) ::shutdown(connection.fd, SHUT_WR);
  pollfd ended{.events = POLLIN};
  for (const Connection& connection : connections_) {
    ended.fd = connection.fd;
    if (::poll(&ended, 1, -1) < 0 || ::recv(connection.fd, scratch.data(), 1, 0) != 0)
      fail("a connection did not end");
  }
}

std::vector<double> Load::run(const Exchange& exchange, int depth, std::chrono::milliseconds span) {
  std::vector<double> times;
  std::string requests;
  for (int i = 0; i < depth; ++i) requests += exchange.request;
  const auto end = Clock::now() + span;
  const auto ask = [&](Connection& connection, std::size_t count, Clock::time_point now) {
    send(connection, std::string_view(requests).substr(0, count * exchange.request.size()));
    connection.asked.insert(connection.asked.end(), count, now);
  };
  std::size_t under_way = connections_.size() * static_cast<std::size_t>(depth);
  for (Connection& connection : connections_)
    ask(connection, static_cast<std::size_t>(depth), Clock::now());
  while (under_way > 0) {
    each_event(
        [&](std::size_t i) {
          Connection& connection = connections_[i];
          const auto now = Clock::now();
          const std::size_t answered = connection.read / exchange.answer_bytes;
          connection.read %= exchange.answer_bytes;
          for (std::size_t n = 0; n < answered; ++n) {
            times.push_back(
                std::chrono::duration<double, std::micro>(now - connection.asked.front()).count());
            connection.asked.pop_front();
          }
          if (now < end)
            ask(connection, answered, now);
          else
            under_way -= answered;
        },
        EPOLLIN);
  }
  return times;
}

}  // namespace ddprun::bench
