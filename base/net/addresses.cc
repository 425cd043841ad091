#include "base/net/addresses.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>

#include "base/net/host_network.h"
#include "base/shown_text.h"

namespace ddprun {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::address_v4;
using boost::asio::ip::address_v6;
using boost::asio::ip::udp;

// None for other families: getifaddrs(3) also lists AF_PACKET entries, and its pointer may be null.
// The copies are needed because a sockaddr must not be read through a pointer to another type.
std::optional<address> from_sockaddr(const sockaddr* raw) {
  if (raw != nullptr && raw->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, raw, sizeof(v4));
    return address_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (raw != nullptr && raw->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, raw, sizeof(v6));
    address_v6::bytes_type bytes{};
    std::memcpy(bytes.data(), v6.sin6_addr.s6_addr, bytes.size());
    // The scope belongs to the address: two interfaces may have the same link-local address.
    return address_v6(bytes, v6.sin6_scope_id);
  }
  return std::nullopt;
}

}  // namespace

bool is_local_address(const address& wanted) {
  return wanted.is_loopback() || wanted.is_unspecified() || !interface_with(wanted).empty();
}

std::string interface_with(const address& wanted) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (from_sockaddr(entry->ifa_addr) == wanted) return entry->ifa_name;
  }
  return {};
}

// Also 127.0.0.1 if the host has neither address. A list of the interfaces would take the kernel
// the longer the more there are.
address loopback_address() {
  const address v4 = address_v4::loopback();
  const address v6 = address_v6::loopback();
  return !can_be_bound(v4) && can_be_bound(v6) ? v6 : v4;
}

address outside_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return loopback_address();
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto found = from_sockaddr(entry->ifa_addr);
    if (!found || found->is_loopback()) continue;
    // It is of no use to a peer, which would have to add an interface of its own.
    if (found->is_v6() && found->to_v6().is_link_local()) continue;
    return *found;
  }
  return loopback_address();
}

// connect(2) on a datagram socket sends nothing. It only chooses a route, and with it the local
// address (udp(7)).
address local_address_for(const address& peer) {
  if (is_local_address(peer) && !peer.is_unspecified()) return peer;
  boost::asio::io_context unused;
  udp::socket socket(unused);
  boost::system::error_code failed;
  constexpr std::uint16_t kAnyPort = 9;  // "discard" (RFC 863); nothing is sent
  socket.connect({peer, kAnyPort}, failed);
  const auto local = failed ? udp::endpoint() : socket.local_endpoint(failed);
  return failed ? loopback_address() : local.address();
}

std::string host_name() {
  // One byte more than is asked for: gethostname(2) need not end a name that it cuts off.
  std::string name(HOST_NAME_MAX + 1, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  name.resize(name.find('\0'));
  return shown_text(name);
}

}  // namespace ddprun
