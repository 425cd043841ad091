#include "rendezvous/grpc/connections.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/limit_hint.h"

namespace ddprun::rendezvous {
namespace {

// Below so many nobody looks which of them are closed.
constexpr std::size_t kFewConnections = 64;

// The address as text. A socket for IPv6 and IPv4 shows an IPv4 peer as ::ffff:10.0.0.1. It becomes
// 10.0.0.1, because other nodes may have no IPv6 to connect with.
std::string numeric(const sockaddr_storage& from, socklen_t length) {
  boost::asio::ip::tcp::endpoint endpoint;
  if (length > endpoint.capacity()) return {};
  std::memcpy(endpoint.data(), &from, length);
  endpoint.resize(length);
  auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
  return address.to_string();
}

// An address stays empty if the kernel has none any more. getpeername() fails with ENOTCONN when
// the peer has reset the connection.
PeerInfo observe(int fd, std::string address) {
  PeerInfo observed{.address = std::move(address)};
  sockaddr_storage from{};
  socklen_t length = sizeof(from);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0)
    observed.reached_at = numeric(from, length);
  return observed;
}

// As gRPC names a connection by its peer. It writes brackets as in a URI (its sockaddr_utils.cc).
std::string name_of_peer(int fd) {
  sockaddr_storage from{};
  socklen_t length = sizeof(from);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) != 0) return {};
  const auto port =
      ntohs(from.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(from).sin6_port
                                       : reinterpret_cast<const sockaddr_in&>(from).sin_port);
  const std::string address = numeric(from, length);
  return address.find(':') == std::string::npos ? fmt::format("ipv4:{}:{}", address, port)
                                                : fmt::format("ipv6:%5B{}%5D:{}", address, port);
}

}  // namespace

Result<void> Connections::prepare(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  const int on = 1;
  // A blocking socket would block gRPC's threads.
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
    return Error(ErrorCode::kSystem, describe_errno(errno));
  // As long as little is sent, the kernel tries a lost packet again six times at equal pauses. It
  // does not double each (the kernel's Documentation/networking/tcp-thin). The node's own bytes are
  // tried again at doubled pauses. A heartbeat that is lost in a blip of 2 s comes after some 3 s.
  ::setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
  return {};
}

// gRPC's threads close connections meanwhile: each is looked at once.
void Connections::forget_closed() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto one = next++;
    if (is_open(one->first)) continue;
    if (const auto named = by_name_.find(one->second.name);
        named != by_name_.end() && named->second == one->first)
      by_name_.erase(named);
    connections_.erase(one);
  }
  std::erase_if(unauthenticated_, [this](int peer) { return !connections_.contains(peer); });
  look_at_size_ = 2 * connections_.size() + kFewConnections;
}

void Connections::add(int fd, Way way, std::string address) {
  if (connections_.size() >= look_at_size_) forget_closed();
  // The kernel gives out a number again only when it is free: its last connection is closed.
  std::erase(unauthenticated_, fd);
  Connection& one = connections_[fd];
  if (const auto old = by_name_.find(one.name); old != by_name_.end() && old->second == fd)
    by_name_.erase(old);
  const bool is_tls = way == Way::kTls;
  one = {observe(fd, std::move(address)),
         meter_reads(fd, is_tls ? Http2Meter::Wire::kTls : Http2Meter::Wire::kClear),
         is_tls ? name_of_peer(fd) : fmt::format("fd:{}", fd)};
  by_name_[one.name] = fd;
  unauthenticated_.push_back(fd);
  if (unauthenticated_.size() <= most_unauthenticated_) return;
  // Only now, because all are looked at: forget those that gRPC has closed.
  std::erase_if(unauthenticated_, [this](int peer) { return !is_open(peer); });
  if (unauthenticated_.size() <= most_unauthenticated_) return;
  // close() would be wrong: the descriptor is gRPC's. After a close() here the kernel could give
  // its number to another connection while gRPC still uses it. gRPC reads the end that shutdown()
  // makes, and closes the descriptor itself.
  cut(unauthenticated_.front());
  unauthenticated_.pop_front();
}

int Connections::admitted(const std::string& peer) {
  const int fd = descriptor_of(peer);
  std::erase(unauthenticated_, fd);
  if (const auto found = connections_.find(fd); found != connections_.end() && found->second.meter)
    found->second.meter->prove();
  return fd;
}

void Connections::cut(int fd) const {
  if (is_open(fd)) ::shutdown(fd, SHUT_RDWR);
}

bool Connections::was_cut(int fd) const {
  const auto found = connections_.find(fd);
  return found != connections_.end() && found->second.meter && found->second.meter->was_cut();
}

std::string Connections::address(int fd) const {
  const auto found = connections_.find(fd);
  return found == connections_.end() ? std::string() : found->second.observed.address;
}

std::string Connections::address_of(int fd) {
  sockaddr_storage from{};
  socklen_t length = sizeof(from);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) != 0) return {};
  return numeric(from, length);
}

int Connections::descriptor_of(const std::string& peer) const {
  const auto found = by_name_.find(peer);
  return found == by_name_.end() ? -1 : found->second;
}

PeerInfo Connections::observed(const std::string& peer) const {
  const auto found = connections_.find(descriptor_of(peer));
  return found == connections_.end() ? PeerInfo{} : found->second.observed;
}

bool Connections::is_open(int fd) const {
  const auto found = connections_.find(fd);
  return found != connections_.end() && found->second.meter && !found->second.meter->is_closed();
}

}  // namespace ddprun::rendezvous
