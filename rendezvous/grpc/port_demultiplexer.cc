#include "rendezvous/grpc/port_demultiplexer.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "base/alarm.h"
#include "base/log.h"
#include "base/net/descriptors.h"
#include "base/net/listener.h"
#include "base/net/silent_socket.h"
#include "rendezvous/grpc/liveness.h"
#include "rendezvous/trust/tls_probe.h"

namespace ddprun::rendezvous {

using asio::ip::tcp;
namespace {

constexpr char kStoreFirstByte = 0;
constexpr char kHttp2FirstByte = 'P';
constexpr char kTlsFirstByte = 0x16;
constexpr char kNothingYet = -1;  // or a byte that nobody of ours begins with

// The peer's first byte; it stays in the socket for the one who gets the connection.
char first_byte(tcp::socket& socket) {
  std::array<char, 1> first{};
  const auto peeked =
      ::recv(socket.native_handle(), first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  return peeked == 1 ? first[0] : kNothingYet;
}

// A node with TLS has come to a host without it. If the alert is lost, the node tries again.
void tell_that_tls_is_not_taken(tcp::socket& socket) {
  ::send(socket.native_handle(), kNoTlsAlert.data(), kNoTlsAlert.size(),
         MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool is_of_node(char first) { return first == kHttp2FirstByte || first == kTlsFirstByte; }

}  // namespace

// Shared by the PortDemultiplexer and what waits for bytes: whichever ends last frees it. No
// coroutine for each connection: a flood would make thousands, of some 5 KiB each.
struct PortDemultiplexer::State {
  // Numbered in the order of their coming, so that the first is the oldest.
  using Number = std::uint64_t;
  struct Connection {
    tcp::socket socket;
    Alarm::Time until;
  };

  State(asio::io_context& its_loop, Handlers its_handlers, DemultiplexerLimits its_limits)
      : loop(its_loop),
        handlers(std::move(its_handlers)),
        limits(its_limits),
        alarm(its_loop, [this] { close_overdue(); }) {}

  static void take(const std::shared_ptr<State>& self, tcp::socket socket);
  static void wait(const std::shared_ptr<State>& self, Number number);

  void hand_on(tcp::socket socket);
  void close(std::map<Number, Connection>::iterator one);
  void close_all();
  void close_overdue();

  asio::io_context& loop;
  const Handlers handlers;
  const DemultiplexerLimits limits;
  const int first_reserved = first_reserved_descriptor();
  std::shared_ptr<Listener> listener;      // two owners: this and its coroutine
  std::map<Number, Connection> undecided;  // oldest first
  Number next_number = 0;
  Alarm alarm;
};

// Adds a connection. The oldest must go if there are too many, or if descriptors run short. Those
// from first_reserved on are for workers, pipes and logs (base/net/descriptors.h).
void PortDemultiplexer::State::take(const std::shared_ptr<State>& self, tcp::socket socket) {
  // Most have sent their first byte by now.
  if (!is_silent(socket)) return self->hand_on(std::move(socket));
  auto& undecided = self->undecided;
  const bool full =
      undecided.size() >= self->limits.undecided || socket.native_handle() >= self->first_reserved;
  if (full && !undecided.empty()) self->close(undecided.begin());
  const Number number = self->next_number++;
  const auto until = std::chrono::steady_clock::now() + self->limits.first_byte;
  undecided.emplace(number, Connection{std::move(socket), until});
  self->alarm.set_no_later_than(until);
  wait(self, number);
}

void PortDemultiplexer::State::wait(const std::shared_ptr<State>& self, Number number) {
  self->undecided.at(number).socket.async_wait(
      tcp::socket::wait_read, [self, number](const boost::system::error_code& /*closed*/) {
        const auto found = self->undecided.find(number);
        if (found == self->undecided.end()) return;  // closed meanwhile
        if (is_silent(found->second.socket)) return wait(self, number);
        tcp::socket socket = std::move(found->second.socket);
        self->undecided.erase(found);
        self->hand_on(std::move(socket));
      });
}

void PortDemultiplexer::State::close_overdue() {
  const auto now = std::chrono::steady_clock::now();
  while (!undecided.empty() && undecided.begin()->second.until <= now) close(undecided.begin());
  if (!undecided.empty()) alarm.set(undecided.begin()->second.until);
}

// Gives the connection to whom its first byte names. If there is none (time-out, an unauthenticated
// peer), the socket closes with this function's end.
void PortDemultiplexer::State::hand_on(tcp::socket socket) {
  const char first = first_byte(socket);
  if (first == kStoreFirstByte) {
    handlers.store(std::move(socket));
    return;
  }
  if (first == kLivenessFirstByte && handlers.liveness) return handlers.liveness(std::move(socket));
  const auto& take = first == kTlsFirstByte ? handlers.rendezvous_by_tls : handlers.rendezvous;
  if (first == kTlsFirstByte && !take) tell_that_tls_is_not_taken(socket);
  if (!is_of_node(first) || !take) return;
  // gRPC cannot use an Asio socket, only its descriptor.
  boost::system::error_code failed;
  const int fd = socket.release(failed);
  if (!failed) take(fd);
}

void PortDemultiplexer::State::close(std::map<Number, Connection>::iterator one) {
  boost::system::error_code ignored;
  one->second.socket.close(ignored);
  undecided.erase(one);
  listener->resume();  // a descriptor came free
}

void PortDemultiplexer::State::close_all() {
  while (!undecided.empty()) close(undecided.begin());
}

PortDemultiplexer::PortDemultiplexer(asio::io_context& loop, tcp::acceptor acceptor,
                                     Handlers handlers, DemultiplexerLimits limits)
    : state_(std::make_shared<State>(loop, std::move(handlers), limits)) {
  state_->listener = std::make_shared<Listener>(std::move(acceptor));
  if (const auto listening = state_->listener->listen(); listening.has_error())
    log::error(fmt::format("rendezvous: {}", listening.error().message()));
  // The coroutine holds the state weakly, or each of the two would keep the other alive.
  spawn(loop, "port demultiplexer",
        Listener::run(state_->listener, [state = std::weak_ptr(state_)](tcp::socket socket) {
          if (const auto alive = state.lock()) State::take(alive, std::move(socket));
        }));
}

PortDemultiplexer::~PortDemultiplexer() {
  state_->listener->close();
  state_->close_all();
}

// A connection that begins as a node's can only be a node's: it survives. Everything else may be a
// worker's of the old attempt, also what has sent nothing yet.
void PortDemultiplexer::reset() {
  state_->listener->take_queue([this](tcp::socket socket) {
    if (is_of_node(first_byte(socket))) state_->hand_on(std::move(socket));
  });
  for (auto next = state_->undecided.begin(); next != state_->undecided.end();) {
    const auto one = next++;  // close() erases `one`
    if (!is_of_node(first_byte(one->second.socket))) state_->close(one);
  }
}

std::size_t PortDemultiplexer::undecided() const { return state_->undecided.size(); }

}  // namespace ddprun::rendezvous
