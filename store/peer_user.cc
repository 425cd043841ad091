#include "store/peer_user.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "base/net/host_network.h"

namespace ddprun::store {
namespace {

using Words = std::array<std::uint32_t, 4>;

// An address as the kernel's tables have it. One of IPv4 within IPv6 (::ffff:127.0.0.1) is IPv4:
// the two ends of a connection may write it differently.
struct Place {
  bool is_v6 = false;
  Words address{};
  std::uint16_t port = 0;  // in network order
};

std::optional<Place> place_of(const sockaddr_storage& storage) {
  Place place;
  if (storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &storage, sizeof(v4));
    place.address[0] = v4.sin_addr.s_addr;
    place.port = v4.sin_port;
    return place;
  }
  if (storage.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &storage, sizeof(v6));
  Words words{};
  std::memcpy(words.data(), &v6.sin6_addr, sizeof(words));
  place.port = v6.sin6_port;
  place.is_v6 = !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  place.address = place.is_v6 ? words : Words{words[3]};
  return place;
}

bool is_on_loopback(const Place& place) {
  if (!place.is_v6) return (ntohl(place.address[0]) >> 24U) == IN_LOOPBACKNET;
  return place.address == Words{0, 0, 0, htonl(1)};
}

PeerUser found(uid_t user, std::uint64_t inode) {
  // A socket that its process has closed may still send what it holds. It has no owner then, and
  // the kernel says user 0.
  if (inode == 0) return {PeerUser::Kind::kNobody};
  return {PeerUser::Kind::kUser, user};
}

struct Question {
  nlmsghdr head{};
  inet_diag_req_v2 body{};
};

// Asks the kernel who has the socket at `local` that is connected to `remote`. Nothing if no answer
// of that kind comes.
std::optional<PeerUser> ask_diag(int netlink, const Place& local, const Place& remote) {
  Question question;
  question.head = {.nlmsg_len = sizeof(question),
                   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                   .nlmsg_flags = NLM_F_REQUEST};
  question.body.sdiag_family = local.is_v6 ? AF_INET6 : AF_INET;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0U;
  inet_diag_sockid& id = question.body.id;
  id.idiag_sport = local.port;
  id.idiag_dport = remote.port;
  std::memcpy(id.idiag_src, local.address.data(), sizeof(id.idiag_src));
  std::memcpy(id.idiag_dst, remote.address.data(), sizeof(id.idiag_dst));
  std::fill(std::begin(id.idiag_cookie), std::end(id.idiag_cookie), INET_DIAG_NOCOOKIE);
  if (::send(netlink, &question, sizeof(question), 0) != sizeof(question)) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 1024> answer{};
  const ssize_t got = ::recv(netlink, answer.data(), answer.size(), MSG_DONTWAIT);
  if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) return std::nullopt;
  nlmsghdr head{};
  std::memcpy(&head, answer.data(), sizeof(head));
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      got < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(inet_diag_msg)))
    return std::nullopt;
  inet_diag_msg told{};
  std::memcpy(&told, answer.data() + NLMSG_HDRLEN, sizeof(told));
  // If there is no such connection, the kernel answers with a listener at that port.
  if (told.id.idiag_dport != remote.port) return std::nullopt;
  return found(told.idiag_uid, told.idiag_inode);
}

std::string in_table(const Place& place) {
  std::string text;
  for (std::size_t i = 0; i < (place.is_v6 ? 4U : 1U); ++i)
    text += fmt::format("{:08X}", place.address[i]);
  return text + fmt::format(":{:04X}", ntohs(place.port));
}

// An IPv4 connection of a socket of IPv6 stands in tcp6, with its address in the last word.
std::string in_table_of_v6(const Place& place) {
  return (place.is_v6 ? "" : "0000000000000000FFFF0000") + in_table(place);
}

PeerUser read_tables(const Place& local, const Place& remote) {
  const auto v4 = read_tcp_table(kTcpTable);
  const auto v6 = read_tcp_table(kTcp6Table);
  if (!v4 && !v6) return {};
  PeerUser user{PeerUser::Kind::kNobody};
  if (!local.is_v6) user = user_in_table(v4.value_or(""), in_table(local), in_table(remote));
  if (user.kind == PeerUser::Kind::kUser) return user;
  return user_in_table(v6.value_or(""), in_table_of_v6(local), in_table_of_v6(remote));
}

}  // namespace

PeerUser user_in_table(std::string_view table, std::string_view local, std::string_view remote) {
  const auto socket = find_tcp_socket(
      table, [&](const TcpSocket& one) { return one.local == local && one.remote == remote; });
  return socket ? found(socket->user, socket->inode) : PeerUser{PeerUser::Kind::kNobody};
}

PeerUser PeerUsers::of(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0) return {};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0)
    return {PeerUser::Kind::kNobody};  // reset meanwhile
  return ask(own, peer);
}

// The peer's socket is that whose local address is the remote one of ours.
PeerUser PeerUsers::ask(const sockaddr_storage& own, const sockaddr_storage& peer) {
  const auto here = place_of(own);
  const auto there = place_of(peer);
  if (!here || !there) return {};
  if (has_diag_ && netlink_.get() < 0)
    netlink_ = FileHandle(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (has_diag_ && netlink_.get() >= 0) {
    if (const auto told = ask_diag(netlink_.get(), *there, *here)) return *told;
  }
  // A peer of this host may connect from any of its addresses, to loopback as well.
  const bool is_of_this_host =
      is_on_loopback(*there) || is_on_loopback(*here) || there->address == here->address;
  if (!is_of_this_host) return {PeerUser::Kind::kOtherHost};
  // "No such socket" and "no such table" are one error: the file decides which it was.
  const PeerUser user = read_tables(*there, *here);
  if (user.kind == PeerUser::Kind::kUser) has_diag_ = false;
  return user;
}

}  // namespace ddprun::store
