#include "base/net/liveness_probe.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/net/refusal.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

// A process that dies may take so many connections that it closes at once.
constexpr int kHastyProbes = 4;

}  // namespace

tcp::socket open_socket(asio::io_context& loop, const tcp::endpoint& to) {
  tcp::socket socket(loop);
  const int fd =
      ::socket(to.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd < 0) return socket;
  const int on = 1;
  const bool is_v6 = to.protocol() == tcp::v6();
  // If the kernel cannot, every refusal looks like one of the host.
  ::setsockopt(fd, is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_RECVERR : IP_RECVERR, &on,
               sizeof(on));
  error_code failed;
  socket.assign(to.protocol(), fd, failed);
  return socket;
}

// A refusal that came as an ICMP message lies in the socket's error queue (ip(7), IP_RECVERR).
bool is_refused_by_host(tcp::socket& socket, const error_code& failure) {
  if (failure != asio::error::connection_refused) return false;
  alignas(cmsghdr) std::array<char, 512> control{};
  msghdr message{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket.native_handle(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return true;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    const bool is_error = (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR) ||
                          (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!is_error) continue;
    sock_extended_err error{};
    std::memcpy(&error, CMSG_DATA(part), sizeof(error));
    if (error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6) return false;
  }
  return true;
}

// Held by the LivenessProbe and by the operation under way.
class LivenessProbe::Visit : public std::enable_shared_from_this<Visit> {
 public:
  Visit(asio::io_context& loop, tcp::endpoint to, std::function<void()> refused, int most_probes,
        Haste haste)
      : loop_(loop),
        to_(std::move(to)),
        refused_(std::move(refused)),
        most_probes_(most_probes),
        haste_(haste),
        socket_(loop),
        pause_(loop) {}

  void connect() {
    if (is_over_ || tries_++ >= most_probes_) return;
    socket_ = open_socket(loop_, to_);
    socket_.async_connect(to_, [self = shared_from_this()](const error_code& failed) {
      if (self->is_over_) return;
      if (!failed || failed == asio::error::connection_reset) self->refused_since_.reset();
      if (!failed) return self->wait();
      // The port is closed while it takes us.
      if (failed == asio::error::connection_reset) return self->try_next();
      if (is_refused_by_host(self->socket_, failed)) self->was_refused();
    });
  }
  void end() {
    is_over_ = true;
    error_code ignored;
    socket_.close(ignored);
    pause_.cancel();
  }

 private:
  // Its bytes do not matter.
  void wait() {
    if (held_since_ == Clock::time_point()) held_since_ = Clock::now();
    socket_.async_read_some(asio::buffer(bytes_),
                            [self = shared_from_this()](const error_code& ended, std::size_t) {
                              if (self->is_over_) return;
                              ended ? self->try_next() : self->wait();
                            });
  }
  // It may destroy us.
  void was_refused() {
    const auto now = Clock::now();
    if (!refused_since_) refused_since_ = now;
    const Refusal refusal = judge_refusal(to_);
    const bool is_long = haste_ == Haste::kBelieveAtOnce || now >= *refused_since_ + kRefusedFor;
    if (refusal == Refusal::kClosed || (refusal == Refusal::kDoubt && is_long)) {
      const auto refused = std::move(refused_);
      return refused();
    }
    --tries_;  // it was no visit
    connect_after(kAskAgain);
  }
  // At once where the process may have died. One that hangs up soon again and again must not be
  // kept busy with it. A process short of descriptors does so.
  void try_next() {
    const auto held = Clock::now() - std::exchange(held_since_, Clock::time_point());
    short_ = held < kProbePause ? short_ + 1 : 0;
    if (short_ < kHastyProbes) return connect();
    connect_after(kProbePause);
  }
  void connect_after(std::chrono::milliseconds pause) {
    pause_.expires_after(pause);
    pause_.async_wait([self = shared_from_this()](const error_code& failed) {
      if (!failed) self->connect();
    });
  }

  asio::io_context& loop_;
  const tcp::endpoint to_;
  std::function<void()> refused_;
  const int most_probes_;
  const Haste haste_;
  tcp::socket socket_;
  asio::steady_timer pause_;
  int short_ = 0;  // connections that ended soon, one after another
  std::optional<Clock::time_point> refused_since_;  // without a connection in between
  Clock::time_point held_since_{};                  // this connection; none: it is not there
  std::array<char, 64> bytes_{};
  int tries_ = 0;
  bool is_over_ = false;
};

LivenessProbe::LivenessProbe(asio::io_context& loop, const std::vector<tcp::endpoint>& to,
                             const std::function<void()>& refused, int most_probes, Haste haste) {
  const auto left = std::make_shared<std::size_t>(to.size());
  for (const tcp::endpoint& endpoint : to)
    visits_.push_back(std::make_shared<Visit>(
        loop, endpoint,
        [left, refused] {
          if (--*left == 0) refused();
        },
        most_probes, haste));
  for (const auto& visit : visits_) visit->connect();
}

LivenessProbe::~LivenessProbe() {
  for (const auto& visit : visits_) visit->end();
}

ProbedPorts::ProbedPorts(asio::io_context& loop, const std::vector<tcp::endpoint>& to)
    : taken_(std::make_shared<std::vector<tcp::endpoint>>()) {
  for (const tcp::endpoint& endpoint : to) {
    const auto socket = std::make_shared<tcp::socket>(open_socket(loop, endpoint));
    under_way_.push_back(socket);
    socket->async_connect(
        endpoint, [socket, endpoint, taken = std::weak_ptr(taken_)](const error_code& failed) {
          const auto known = taken.lock();
          // A reset comes after the port took it, and hung up before we looked.
          const bool is_taken = !failed || failed == asio::error::connection_reset;
          if (is_taken && known) known->push_back(endpoint);
        });
  }
}

ProbedPorts::~ProbedPorts() {
  error_code ignored;
  for (const auto& one : under_way_)
    if (const auto socket = one.lock()) socket->close(ignored);
}

}  // namespace ddprun
