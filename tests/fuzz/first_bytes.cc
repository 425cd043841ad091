// The port demultiplexer over real loopback connections. The input is a script. It says whether TLS
// is taken, which connection is opened, its bytes and end, and when the port is reset. At the end
// each connection is with the one that its first byte names, with nothing read from it. Or it is
// closed for a reason. A peer that begins TLS where it is not taken gets the alert that says so.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "rendezvous/grpc/liveness.h"
#include "rendezvous/grpc/port_demultiplexer.h"
#include "rendezvous/trust/tls_probe.h"
#include "tests/fuzz/loopback_listener.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::fuzz {
namespace {

using asio::ip::tcp;
using rendezvous::kNoTlsAlert;
using rendezvous::PortDemultiplexer;

enum class Owner { kNobody, kStore, kRendezvous, kRendezvousByTls, kLiveness };

// The owner that a first byte names. Another protocol on the port is a line here.
constexpr char kTls = 0x16;
constexpr std::array<std::pair<char, Owner>, 4> kFirstBytes = {
    {{'\0', Owner::kStore},
     {'P', Owner::kRendezvous},
     {kTls, Owner::kRendezvousByTls},
     {rendezvous::kLivenessFirstByte, Owner::kLiveness}}};

constexpr std::size_t kMostConnections = 12;
constexpr std::size_t kUndecided = 4;
// Nothing here takes more than moments; a machine that stands still is no finding.
constexpr std::chrono::seconds kDeadline{20};

int port_of(const sockaddr_in& address) { return ntohs(address.sin_port); }

int local_port(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  DDPRUN_ASSERT(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return port_of(address);
}

constexpr int kNoPort = -2;
constexpr int kUnknownPort = -1;

// kUnknownPort: the peer has reset it.
int peer_port(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  const bool known = ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return known ? port_of(address) : kUnknownPort;
}

struct Client {
  int fd = -1;
  int port = kNoPort;
  std::string sent;
  bool may_be_closed = false;  // it was in the way of others, or of a reset
  bool is_gone = false;        // it has closed its end itself
  bool is_past = false;        // and the port has seen that
  Owner owner = Owner::kNobody;
  int served_fd = -1;  // with `owner`
};

class Port {
 public:
  explicit Port(bool takes_tls) : takes_tls_(takes_tls) {
    tcp::acceptor acceptor = listen_on_loopback(loop_);
    address_.sin_family = AF_INET;
    const tcp::endpoint endpoint = acceptor.local_endpoint();
    address_.sin_port = htons(endpoint.port());
    address_.sin_addr.s_addr = htonl(endpoint.address().to_v4().to_uint());
    demultiplexer_.emplace(loop_, std::move(acceptor),
                           rendezvous::PortDemultiplexer::Handlers{
                               .store = with(Owner::kStore),
                               .rendezvous = [this](int fd) { handed_on(fd, Owner::kRendezvous); },
                               .rendezvous_by_tls = takes_tls ? by_tls() : nullptr,
                               .liveness = with(Owner::kLiveness)},
                           rendezvous::DemultiplexerLimits{.undecided = kUndecided});
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  ~Port() {
    demultiplexer_.reset();
    loop_.restart();
    loop_.poll();
    for (Client& client : clients_) {
      close_at_once(client.served_fd);
      close_at_once(client.fd);
    }
    for (int fd : unauthenticated_) close_at_once(fd);
  }

  void run(ScriptInput script) {
    while (!script.empty()) {
      const std::uint8_t step = script.byte();
      switch (step % 8) {
        case 0:
        case 1:
          connect();
          break;
        case 2:
        case 3:
        case 4:
          if (!clients_.empty()) send(clients_[step / 8 % clients_.size()], script);
          break;
        case 5:
          if (!clients_.empty()) leave(clients_[step / 8 % clients_.size()], script.flag());
          break;
        case 6:
          reset();
          break;
        case 7:
          settle();
          break;
      }
    }
    settle();
    for (const Client& client : clients_) check(client);
  }

 private:
  std::function<void(tcp::socket)> with(Owner owner) {
    return [this, owner](tcp::socket socket) {
      boost::system::error_code failed;
      handed_on(socket.release(failed), owner);
    };
  }
  std::function<void(int)> by_tls() {
    return [this](int fd) { handed_on(fd, Owner::kRendezvousByTls); };
  }

  Owner owner_of(const std::string& sent) const {
    for (const auto& [byte, owner] : kFirstBytes)
      if (!sent.empty() && sent.front() == byte && (byte != kTls || takes_tls_)) return owner;
    return Owner::kNobody;
  }

  void connect() {
    if (clients_.size() == kMostConnections) return;
    Client client;
    client.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DDPRUN_ASSERT(client.fd >= 0);
    DDPRUN_ASSERT(
        ::connect(client.fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0);
    client.port = local_port(client.fd);
    // The oldest of those that have said nothing go. One that has spoken may be among them as long
    // as the loop has not seen it.
    if (undecided_at_most() >= kUndecided)
      for (Client& one : clients_) one.may_be_closed = true;
    clients_.push_back(client);
  }

  std::size_t undecided_at_most() const {
    return static_cast<std::size_t>(std::ranges::count_if(clients_, [this](const Client& one) {
      return one.served_fd < 0 && !one.is_past && (one.fd < 0 || !is_closed(one));
    }));
  }

  static void send(Client& client, ScriptInput& script) {
    const std::string bytes(script.bytes(1 + script.choice(8)));
    if (client.is_gone || bytes.empty()) return;
    // The other end may have closed; then nothing more is promised of it.
    const auto taken = ::send(client.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken > 0) client.sent.append(bytes, 0, static_cast<std::size_t>(taken));
  }

  static void leave(Client& client, bool politely) {
    if (client.is_gone) return;
    client.is_gone = true;
    if (politely) {
      ::shutdown(client.fd, SHUT_WR);
    } else {
      close_at_once(client.fd);
      client.port = kNoPort;  // the kernel may give it to the next one
    }
  }

  void reset() {
    for (Client& client : clients_)
      if (client.sent.empty() || (client.sent.front() != 'P' && client.sent.front() != kTls))
        client.may_be_closed = true;
    demultiplexer_->reset();
  }

  void handed_on(int fd, Owner owner) {
    const int port = peer_port(fd);
    const auto found = std::ranges::find(clients_, port, &Client::port);
    if (found == clients_.end()) {
      DDPRUN_ASSERT(port == kUnknownPort);  // it was reset; nobody can tell whose it was
      unauthenticated_.push_back(fd);
      return;
    }
    DDPRUN_ASSERT(found->owner == Owner::kNobody);
    DDPRUN_ASSERT(owner == owner_of(found->sent));
    found->owner = owner;
    found->served_fd = fd;
  }

  // Returns whether the other end of `client` is closed. Nobody there ever writes but for the
  // alert, and then it closes.
  bool is_closed(const Client& client) const {
    std::array<unsigned char, 16> bytes{};
    const auto got = ::recv(client.fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got <= 0) return got == 0 || errno != EAGAIN;
    DDPRUN_ASSERT(!takes_tls_ && !client.sent.empty() && client.sent.front() == kTls);
    const auto alert = std::span(bytes).first(static_cast<std::size_t>(got));
    DDPRUN_ASSERT(std::ranges::equal(alert, kNoTlsAlert));
    return true;
  }
  static bool has_alert(const Client& client) {
    char byte = 0;
    return ::recv(client.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }

  bool is_settled(const Client& client) const {
    if (client.served_fd >= 0 || client.fd < 0 || is_closed(client)) return true;
    return client.sent.empty() && !client.is_gone;
  }

  // Runs the loop until everybody who said something is with somebody, or closed.
  void settle() {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (true) {
      loop_.restart();
      while (loop_.poll() > 0) {
      }
      const auto silent =
          static_cast<std::size_t>(std::ranges::count_if(clients_, [this](auto& one) {
            return one.served_fd < 0 && one.fd >= 0 && !is_closed(one);
          }));
      const bool all = std::ranges::all_of(clients_, [this](auto& one) { return is_settled(one); });
      if (all && silent == demultiplexer_->undecided()) break;
      DDPRUN_ASSERT(std::chrono::steady_clock::now() < deadline);
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(100));
    }
    for (Client& client : clients_) client.is_past = client.fd < 0;
  }

  void check(const Client& client) const {
    DDPRUN_ASSERT(demultiplexer_->undecided() <= kUndecided);
    const Owner owner = owner_of(client.sent);
    DDPRUN_ASSERT(client.owner == Owner::kNobody || client.owner == owner);
    if (client.served_fd >= 0) return check_nothing_was_read(client);
    if (client.fd < 0 || client.may_be_closed) return;
    // It is closed if it is an unauthenticated peer or has gone without a word, and only then.
    const bool should_be_closed = !client.sent.empty() || client.is_gone;
    DDPRUN_ASSERT(owner == Owner::kNobody);
    DDPRUN_ASSERT(is_closed(client) == should_be_closed);
    const bool begins_tls = !client.sent.empty() && client.sent.front() == kTls;
    DDPRUN_ASSERT(has_alert(client) == begins_tls);
  }

  static void check_nothing_was_read(const Client& client) {
    if (client.fd < 0) return;  // a reset connection gives nothing back
    std::string got;
    while (got.size() < client.sent.size()) {
      pollfd ready{client.served_fd, POLLIN, 0};
      DDPRUN_ASSERT(::poll(&ready, 1, 20'000) == 1);
      std::array<char, 256> bytes{};
      const auto count = ::recv(client.served_fd, bytes.data(), bytes.size(), 0);
      DDPRUN_ASSERT(count > 0);
      got.append(bytes.data(), static_cast<std::size_t>(count));
    }
    DDPRUN_ASSERT(got == client.sent);
  }

  // With a reset: a polite close would keep the port for a minute, and ports would run out.
  static void close_at_once(int& fd) {
    if (fd < 0) return;
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    ::close(std::exchange(fd, -1));
  }

  const bool takes_tls_;
  asio::io_context loop_{1};
  sockaddr_in address_{};
  std::optional<rendezvous::PortDemultiplexer> demultiplexer_;
  std::vector<Client> clients_;
  std::vector<int> unauthenticated_;
};

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::ScriptInput script(data, std::min<std::size_t>(size, 512));
  ddprun::fuzz::Port port(script.flag());
  port.run(script);
  return 0;
}
