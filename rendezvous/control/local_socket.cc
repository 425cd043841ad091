#include "rendezvous/control/local_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/file_handle.h"
#include "base/limit_hint.h"
#include "base/net/host_network.h"
#include "base/numbers.h"
#include "base/random_number.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kPrefix = "ddprun-operators/";
constexpr std::string_view kNodePrefix = "ddprun-node/";
constexpr int kBacklog = 16;

struct Address {
  sockaddr_un data{};
  socklen_t size = 0;
};

Address address_of(const std::string& name) {
  Address address;
  DDPRUN_ASSERT(name.size() < sizeof(address.data.sun_path));
  address.data.sun_family = AF_UNIX;
  std::memcpy(address.data.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// "ddprun-operators/ADDRESS/PORT/RANDOM"
std::optional<LocalName> parse_name(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() >= sizeof(sockaddr_un::sun_path))
    return std::nullopt;
  const std::string_view rest = name.substr(kPrefix.size());
  const std::size_t first = rest.find('/');
  const std::size_t second = first == rest.npos ? rest.npos : rest.find('/', first + 1);
  if (second == rest.npos) return std::nullopt;
  LocalName found{.address = std::string(rest.substr(0, first)), .name = std::string(name)};
  const std::string_view port = rest.substr(first + 1, second - first - 1);
  const auto number = parse_whole<std::uint16_t>(port);
  if (!number) return std::nullopt;
  found.port = *number;
  return found;
}

boost::asio::ip::address parsed(const std::string& address) {
  boost::system::error_code failed;
  return boost::asio::ip::make_address(address, failed);
}

std::string text_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Holds none if nobody listens there, or takes nobody now: errno is then EAGAIN.
FileHandle connected(const std::string& name) {
  FileHandle socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const Address address = address_of(name);
  if (socket.get() < 0 || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.data),
                                    address.size) != 0) {
    const int why = errno;
    socket.close();
    errno = why;
  }
  return socket;
}

bool listens(uid_t user, std::uint16_t port) {
  return std::ranges::any_of(std::array{kTcpTable, kTcp6Table}, [&](const char* path) {
    return find_tcp_socket(read_tcp_table(path).value_or(""),
                           [&](const TcpSocket& socket) {
                             return listens_at(socket, port) && socket.user == user;
                           })
        .has_value();
  });
}

}  // namespace

LocalName new_local_name(const std::string& address, std::uint16_t port) {
  return {address, port, fmt::format("{}{}/{}/{:016x}", kPrefix, address, port, random_number())};
}

std::vector<LocalName> local_names(std::string_view sockets, std::uint16_t port,
                                   const std::vector<std::string>& addresses,
                                   const std::vector<bool>& is_own) {
  std::vector<std::pair<int, LocalName>> ranked;
  const bool is_here = std::ranges::find(is_own, true) != is_own.end();
  for (std::size_t at = 0; at < sockets.size();) {
    const std::size_t end = std::min(sockets.find('\n', at), sockets.size());
    const std::string_view row = sockets.substr(at, end - at);
    at = end + 1;
    const std::size_t name = row.find('@');
    if (name == row.npos) continue;
    auto found = parse_name(row.substr(name + 1));
    if (!found || found->port != port || !is_here) continue;
    const bool is_named = std::ranges::any_of(addresses, [&](const std::string& address) {
      return parsed(address) == parsed(found->address);
    });
    const int rank = is_named ? 0 : parsed(found->address).is_unspecified() ? 1 : 2;
    const bool is_seen = std::ranges::any_of(
        ranked, [&](const auto& one) { return one.second.name == found->name; });
    if (!is_seen) ranked.emplace_back(rank, *std::move(found));
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& one) { return one.first; });
  std::vector<LocalName> names;
  names.reserve(ranked.size());
  for (auto& [rank, name] : ranked) names.push_back(std::move(name));
  return names;
}

std::string new_node_socket_name(pid_t pid) {
  return fmt::format("{}{}/{:016x}", kNodePrefix, pid, random_number());
}

std::vector<NodeSocketName> node_socket_names(std::string_view sockets) {
  std::vector<NodeSocketName> names;
  for (std::size_t at = 0; at < sockets.size();) {
    const std::size_t end = std::min(sockets.find('\n', at), sockets.size());
    const std::string_view row = sockets.substr(at, end - at);
    at = end + 1;
    const std::size_t begin = row.find('@');
    if (begin == row.npos) continue;
    const std::string_view name = row.substr(begin + 1);
    if (!name.starts_with(kNodePrefix) || name.size() >= sizeof(sockaddr_un::sun_path)) continue;
    const std::string_view rest = name.substr(kNodePrefix.size());
    const auto pid = parse_whole<pid_t>(rest.substr(0, rest.find('/')));
    const bool is_seen = std::ranges::find(names, name, &NodeSocketName::name) != names.end();
    if (pid && *pid > 0 && !is_seen) names.push_back({*pid, std::string(name)});
  }
  std::ranges::stable_sort(names, {}, &NodeSocketName::pid);
  return names;
}

std::vector<NodeSocketName> node_sockets_of_host() {
  return node_socket_names(text_of("/proc/net/unix"));
}

bool may_order(uid_t caller, uid_t server) { return caller == server || caller == 0; }

std::optional<uid_t> peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer.uid;
}

Result<int> listen_locally(const std::string& name) {
  FileHandle socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const Address address = address_of(name);
  if (socket.get() < 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.data), address.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return Error(ErrorCode::kSystem, describe_errno(errno));
  return socket.release();
}

int connect_locally(const std::vector<std::string>& addresses, std::uint16_t port) {
  std::vector<bool> is_own;
  is_own.reserve(addresses.size());
  for (const std::string& address : addresses) is_own.push_back(is_own_address(parsed(address)));
  const uid_t self = ::geteuid();
  for (const LocalName& one : local_names(text_of("/proc/net/unix"), port, addresses, is_own)) {
    FileHandle socket = connected(one.name);
    if (socket.get() < 0) continue;
    const auto server = peer_of(socket.get());
    // Anybody may listen at such a name. A process of another user would not hear us.
    if (server && (*server == self || (self == 0 && listens(*server, port))))
      return socket.release();
  }
  return -1;
}

int connect_to_node(const std::string& name) {
  FileHandle socket = connected(name);
  if (socket.get() < 0) return errno == EAGAIN ? kBusyNode : -1;
  const auto server = peer_of(socket.get());
  return server && may_order(::geteuid(), *server) ? socket.release() : -1;
}

}  // namespace ddprun::rendezvous
