#include "rendezvous/connections.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/asio/ip/tcp.hpp>
#include <charconv>
#include <cstring>
#include <string_view>

namespace ddprun::rendezvous {
namespace {

// The address as text. A socket for IPv6 and IPv4 shows an IPv4 peer as ::ffff:10.0.0.1; it becomes
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

// An address stays empty if the kernel has none any more: getpeername() fails with ENOTCONN when
// the peer has reset the connection.
Observed observe(int fd) {
  Observed observed;
  sockaddr_storage from{};
  socklen_t length = sizeof(from);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0)
    observed.address = numeric(from, length);
  length = sizeof(from);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0)
    observed.reached_at = numeric(from, length);
  return observed;
}

// 0 if `fd` is not open. No socket has that inode: the kernel never gives out 0 (fs/inode.c,
// get_next_ino).
ino_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

// The number in gRPC's name of a connection, "fd:7". -1 for other texts, which are no descriptor.
int descriptor_of(std::string_view peer) {
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  if (peer.starts_with(kPrefix))
    std::from_chars(peer.data() + kPrefix.size(), peer.data() + peer.size(), fd);
  return fd;
}

}  // namespace

void Connections::add(int fd) {
  // The kernel gives out a number again only when it is free: its last connection is closed.
  std::erase(strangers_, fd);
  connections_[fd] = {observe(fd), inode_of(fd)};
  strangers_.push_back(fd);
  if (strangers_.size() <= most_strangers_) return;
  // Only now, because it costs a system call for each: forget those that gRPC has closed.
  std::erase_if(strangers_, [this](int one) { return !is_open(one); });
  if (strangers_.size() <= most_strangers_) return;
  // Not close(): the descriptor is gRPC's. After a close() here the kernel could give its number to
  // another connection while gRPC still uses it. gRPC reads the end that shutdown() makes, and
  // closes the descriptor itself.
  ::shutdown(strangers_.front(), SHUT_RDWR);
  strangers_.pop_front();
}

void Connections::let_in(const std::string& peer) { std::erase(strangers_, descriptor_of(peer)); }

Observed Connections::observed(const std::string& peer) const {
  const auto found = connections_.find(descriptor_of(peer));
  return found == connections_.end() ? Observed{} : found->second.observed;
}

bool Connections::is_open(int fd) const { return inode_of(fd) == connections_.at(fd).inode; }

}  // namespace ddprun::rendezvous
