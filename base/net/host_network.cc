#include "base/net/host_network.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/udp.hpp>
#include <fstream>
#include <sstream>

#include "base/file_handle.h"
#include "base/numbers.h"

namespace ddprun {
namespace {

// " 0: 0100007F:72C5 00000000:0000 0A 0:0 00:0 0 1000 0 4711 …". The fields are number, own
// address, peer, state (0A: listening), queues, timer, retries, user, timeouts, inode.
enum Column : std::size_t { kLocal = 1, kRemote = 2, kState = 3, kUser = 7, kInode = 9 };
using Columns = std::array<std::string_view, kInode + 1>;

std::optional<Columns> columns_of(std::string_view line) {
  Columns columns;
  for (std::string_view& column : columns) {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty()) return std::nullopt;
    column = line.substr(0, line.find(' '));
    line.remove_prefix(column.size());
  }
  return columns;
}

std::uint64_t number_in(std::string_view text) {
  return leading_number<std::uint64_t>(text).value_or(0);
}

}  // namespace

std::optional<std::string> read_tcp_table(const char* path) {
  const std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<TcpSocket> find_tcp_socket(std::string_view table,
                                         const std::function<bool(const TcpSocket&)>& matches) {
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(line.size() + 1, table.size()));
    const auto columns = columns_of(line);
    if (!columns) continue;
    const TcpSocket socket{.local = (*columns)[kLocal],
                           .remote = (*columns)[kRemote],
                           .listens = (*columns)[kState] == "0A",
                           .user = static_cast<uid_t>(number_in((*columns)[kUser])),
                           .inode = number_in((*columns)[kInode])};
    if (matches(socket)) return socket;
  }
  return std::nullopt;
}

bool listens_at(const TcpSocket& socket, std::uint16_t port) {
  return socket.listens && socket.local.ends_with(fmt::format(":{:04X}", port));
}

bool can_be_bound(const boost::asio::ip::address& address) {
  const boost::asio::ip::udp::endpoint any_port(address, 0);
  const FileHandle socket(
      ::socket(any_port.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP));
  return socket.get() >= 0 &&
         ::bind(socket.get(), any_port.data(), static_cast<socklen_t>(any_port.size())) == 0;
}

bool is_own_address(const boost::asio::ip::address& address) {
  return address.is_loopback() || can_be_bound(address);
}

}  // namespace ddprun
