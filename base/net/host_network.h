// Asks the kernel about this host's network: its TCP sockets, as /proc/net/tcp and tcp6 list them
// (proc_pid_net(5)), and its addresses. Any thread.
#pragma once

#include <sys/types.h>

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

inline constexpr const char* kTcpTable = "/proc/net/tcp";
inline constexpr const char* kTcp6Table = "/proc/net/tcp6";

// A line of a table.
struct TcpSocket {
  std::string_view local;   // "0100007F:1F90"
  std::string_view remote;  // the same
  bool listens = false;
  uid_t user = 0;
  std::uint64_t inode = 0;  // 0: no process has it any more
};

// The text of a table. Nothing if it cannot be read, as without /proc.
std::optional<std::string> read_tcp_table(const char* path);

// The first socket of the table that `matches`. It points into `table`. Pure.
std::optional<TcpSocket> find_tcp_socket(std::string_view table,
                                         const std::function<bool(const TcpSocket&)>& matches);

// Returns whether it listens at this port, at any address.
bool listens_at(const TcpSocket& socket, std::uint16_t port);

// Returns whether the address is one of this host: no other one can be bound. A host may lack one
// family's loopback address.
bool can_be_bound(const boost::asio::ip::address& address);

// As can_be_bound(), and each loopback address counts.
bool is_own_address(const boost::asio::ip::address& address);

}  // namespace ddprun
