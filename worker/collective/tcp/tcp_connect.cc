#include "worker/collective/tcp/tcp_connect.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "base/blocking_wait.h"
#include "base/duration.h"
#include "base/random_number.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;
using Secret = std::array<unsigned char, 16>;

// The greeting of a connecting rank.
struct Hello {
  std::array<char, 8> magic;
  Secret secret;
  std::uint32_t rank;
  std::uint32_t heads;  // a build with other frames has other sizes
};
constexpr std::array<char, 8> kMagic{'D', 'D', 'P', 'T', 'C', 'P', '0', '1'};
constexpr std::uint32_t kHeads = sizeof(FrameHead) << 16U | sizeof(OperationHead);

// Connections that have not said who they are, beside one of each rank. Ranks say it at once.
constexpr std::size_t kMostUnauthenticated = 64;

// The facts of each rank that the exchange carries.
struct Card {
  std::string address;
  std::uint16_t port = 0;
  Secret secret{};
  std::string host;
};

std::string to_text(const Card& card) {
  return fmt::format("{} {} {:02x} {}", card.address, card.port, fmt::join(card.secret, ""),
                     card.host);
}

template <typename Number>
bool parse(std::string_view text, Number& number, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Takes the next word off the text.
std::string_view word(std::string_view& text) {
  const auto end = std::min(text.find(' '), text.size());
  const auto first = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return first;
}

std::optional<Card> card_of(std::string_view text) {
  Card card;
  card.address = word(text);
  const bool port = parse(word(text), card.port);
  const auto secret = word(text);
  if (!port || secret.size() != 2 * card.secret.size()) return std::nullopt;
  for (std::size_t i = 0; i < card.secret.size(); ++i)
    if (!parse(secret.substr(2 * i, 2), card.secret.at(i), 16)) return std::nullopt;
  card.host = text;
  return card;
}

Error failed(const std::string& doing) {
  return {ErrorCode::kSystem, doing + ": " + std::generic_category().message(errno)};
}

// A numeric address with a port.
struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

Result<Address> resolve(const std::string& text, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return Error(ErrorCode::kInvalidArgument, "not a numeric address: " + text);
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

// Sets the card's port.
Result<FileHandle> listen_at(Card& card) {
  auto address = resolve(card.address, 0);
  if (!address) return address.error();
  FileHandle socket(
      ::socket(address->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return failed("make a socket");
  if (::bind(socket.get(), address->get(), address->length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), address->get(), &address->length) != 0)
    return failed("listen at " + card.address + " for the other ranks");
  // The port lies at the same place for IPv4 and IPv6.
  card.port = ntohs(reinterpret_cast<sockaddr_in*>(address->get())->sin_port);
  return socket;
}

// Connects a rank with all others; poll() drives it.
class MeshBuilder {
 public:
  MeshBuilder(const TcpJob& job, std::vector<Card> cards, FileHandle listener)
      : rank_(static_cast<std::size_t>(job.rank)),
        congestion_control_(job.congestion_control),
        cards_(std::move(cards)),
        listener_(std::move(listener)),
        sockets_(cards_.size()),
        calls_(rank_),
        lost_(cards_.size()),
        limit_(std::min<std::chrono::milliseconds>(job.timeout, kConnectLimit)) {}

  // One that cannot be reached does not end it at once. The other ranks learn from their
  // connections with this one that it has given up.
  Result<TcpConnections> run() {
    for (std::size_t peer = 0; peer < rank_; ++peer)
      if (auto called = call(peer); !called) lose(peer, called.error());
    const auto end = Clock::now() + limit_;
    BlockingWait wait;
    while (!all_here()) {
      const auto now = Clock::now();
      if (now >= end) return failure_ ? *failure_ : late();
      wait.tell([this] {
        return fmt::format("rank {} on {} has no connection with {}", rank_, cards_[rank_].host,
                           missing());
      });
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(wait.until(end) - now);
      if (auto done = turn(std::max(left, std::chrono::milliseconds(0))); !done)
        return failure_ ? *failure_ : done.error();
    }
    if (failure_) return *failure_;
    return result();
  }

 private:
  struct UnauthenticatedPeer {
    FileHandle socket;
    Hello hello{};
    std::size_t got = 0;
  };

  bool is_missing(std::size_t peer) const {
    return peer != rank_ && sockets_[peer].get() < 0 && !lost_[peer];
  }

  bool all_here() const {
    for (std::size_t peer = 0; peer < cards_.size(); ++peer)
      if (is_missing(peer)) return false;
    return true;
  }

  void lose(std::size_t peer, const Error& error) {
    calls_[peer] = FileHandle();
    lost_[peer] = true;
    if (!failure_) failure_ = error;
  }

  std::string name(std::size_t peer) const {
    const Card& card = cards_[peer];
    return fmt::format("rank {} on {} ({} port {})", peer, card.host, card.address, card.port);
  }

  Error unreachable(std::size_t peer, int error) const {
    return {ErrorCode::kUnavailable,
            fmt::format("rank {} on {} cannot connect to {}: {}", rank_, cards_[rank_].host,
                        name(peer), std::generic_category().message(error))};
  }

  Error gave_up(std::size_t peer) const {
    return {ErrorCode::kUnavailable,
            fmt::format("rank {} on {} has lost its connection with {} before all ranks were "
                        "connected: the output of that rank says why",
                        rank_, cards_[rank_].host, name(peer))};
  }

  std::string missing() const {
    std::vector<std::string> names;
    for (std::size_t peer = 0; peer < cards_.size(); ++peer)
      if (is_missing(peer)) names.push_back(name(peer));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  Error late() const {
    return {ErrorCode::kTimedOut,
            fmt::format("rank {} on {} has no connection with {} after {} s: allow TCP between "
                        "these hosts, or name the interface that reaches them "
                        "(GLOO_SOCKET_IFNAME)",
                        rank_, cards_[rank_].host, missing(), in_seconds(limit_))};
  }

  Result<void> call(std::size_t peer) {
    auto address = resolve(cards_[peer].address, cards_[peer].port);
    if (!address) return address.error();
    calls_[peer] = FileHandle(
        ::socket(address->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (calls_[peer].get() < 0) return failed("make a socket");
    if (::connect(calls_[peer].get(), address->get(), address->length) != 0 && errno != EINPROGRESS)
      return unreachable(peer, errno);
    return boost::system::in_place_value;
  }

  Result<void> turn(std::chrono::milliseconds limit) {
    std::vector<pollfd> watched;
    for (const FileHandle& socket : sockets_) watched.push_back({socket.get(), POLLRDHUP, 0});
    watched.push_back({listener_.get(), POLLIN, 0});
    for (const UnauthenticatedPeer& peer : unauthenticated_)
      watched.push_back({peer.socket.get(), POLLIN, 0});
    for (const FileHandle& socket : calls_)
      if (socket.get() >= 0) watched.push_back({socket.get(), POLLOUT, 0});
    ::poll(watched.data(), watched.size(), static_cast<int>(limit.count()));
    // A rank that gives up closes all that it has: the others need not wait for their limit.
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer)
      if (watched[peer].fd >= 0 && watched[peer].revents != 0) return gave_up(peer);
    for (std::size_t peer = 0; peer < calls_.size(); ++peer)
      if (auto said = say_hello(peer); !said) lose(peer, said.error());
    for (UnauthenticatedPeer& peer : unauthenticated_) hear_hello(peer);
    std::erase_if(unauthenticated_,
                  [](const UnauthenticatedPeer& peer) { return peer.socket.get() < 0; });
    return accept_all();
  }

  // Once the connection stands. A hello fits into an empty socket.
  Result<void> say_hello(std::size_t peer) {
    pollfd call{calls_[peer].get(), POLLOUT, 0};
    if (call.fd < 0 || ::poll(&call, 1, 0) != 1) return boost::system::in_place_value;
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(call.fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return unreachable(peer, error);
    const Hello hello{kMagic, cards_[peer].secret, static_cast<std::uint32_t>(rank_), kHeads};
    if (::send(call.fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
      return unreachable(peer, errno);
    sockets_[peer] = std::move(calls_[peer]);
    return boost::system::in_place_value;
  }

  void hear_hello(UnauthenticatedPeer& peer) {
    auto* bytes = reinterpret_cast<char*>(&peer.hello);
    const ssize_t got =
        ::recv(peer.socket.get(), bytes + peer.got, sizeof peer.hello - peer.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) peer.got += static_cast<std::size_t>(got);
    if (got > 0 && peer.got < sizeof peer.hello) return;
    const Hello& hello = peer.hello;
    const bool ours = peer.got == sizeof hello && hello.magic == kMagic &&
                      hello.secret == cards_[rank_].secret && hello.heads == kHeads &&
                      hello.rank > rank_ && hello.rank < cards_.size();
    FileHandle socket = std::move(peer.socket);
    if (ours && sockets_[hello.rank].get() < 0) sockets_[hello.rank] = std::move(socket);
  }

  Result<void> accept_all() {
    while (true) {
      FileHandle socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (socket.get() < 0 && nobody) return boost::system::in_place_value;
      if (socket.get() < 0) return failed("accept a connection of another rank");
      if (unauthenticated_.size() == kMostUnauthenticated + cards_.size())
        unauthenticated_.erase(unauthenticated_.begin());
      unauthenticated_.push_back({.socket = std::move(socket)});
      hear_hello(unauthenticated_.back());
      if (unauthenticated_.back().socket.get() < 0) unauthenticated_.pop_back();
    }
  }

  TcpConnections result() {
    TcpConnections connected;
    for (std::size_t peer = 0; peer < cards_.size(); ++peer) {
      connected.hosts.push_back(cards_[peer].host);
      if (peer != rank_) set_up(sockets_[peer].get());
      connected.links.emplace_back(std::move(sockets_[peer]));
    }
    return connected;
  }

  void set_up(int socket) const {
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (congestion_control_.empty()) return;
    ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, congestion_control_.data(),
                 static_cast<socklen_t>(congestion_control_.size()));
  }

  std::size_t rank_;
  std::string congestion_control_;
  std::vector<Card> cards_;  // by rank
  FileHandle listener_;
  std::vector<FileHandle> sockets_;                   // by rank: those that know each other
  std::vector<FileHandle> calls_;                     // by rank: those that we connect to
  std::vector<bool> lost_;                            // by rank: those that cannot be reached
  std::optional<Error> failure_;                      // why the first of them cannot
  std::vector<UnauthenticatedPeer> unauthenticated_;  // those that connect to us
  std::chrono::milliseconds limit_;
};

}  // namespace

Result<TcpConnections> tcp_connect(const TcpJob& job, Exchange& exchange) {
  Card mine{.address = job.address, .host = job.host.substr(0, 64)};
  fill_with_random(mine.secret.data(), mine.secret.size());
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  auto listener = listen_at(mine);
  const auto card =
      listener ? Result<std::string>(to_text(mine)) : Result<std::string>(listener.error());
  const auto texts = gather_or_fail(exchange, job.rank, card);
  if (!texts) return texts.error();
  std::vector<Card> cards;
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    const auto theirs = card_of((*texts)[rank]);
    if (!theirs) return Error(ErrorCode::kProtocol, fmt::format("rank {} gave no address", rank));
    cards.push_back(*theirs);
  }
  return MeshBuilder(job, std::move(cards), std::move(*listener)).run();
}

}  // namespace ddprun::worker
