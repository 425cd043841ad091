// The socket at which a rendezvous serves the operators of its own host. It is an abstract Unix
// socket (unix(7)), named by the address and port of the rendezvous. A random end keeps others from
// taking the name first. Both sides ask the kernel whose process the other is. Linux; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::rendezvous {

struct LocalName {
  std::string address;  // numeric, where the rendezvous listens
  std::uint16_t port = 0;
  std::string name;  // of the socket, without the zero byte before it
};

// The name of a new socket.
LocalName new_local_name(const std::string& address, std::uint16_t port);
// Returns those sockets of a host (/proc/net/unix) that may be the rendezvous at this port and one
// of these addresses. The likeliest comes first. `is_own`: whether an address is one of this host.
// Pure.
std::vector<LocalName> local_names(std::string_view sockets, std::uint16_t port,
                                   const std::vector<std::string>& addresses,
                                   const std::vector<bool>& is_own);

// A node's own socket (node_socket.h). Its name says the pid of its ddprun and no more. All users
// can read the names of sockets. The id of a job may be enough to join it.
struct NodeSocketName {
  pid_t pid = 0;
  std::string name;
};
std::string new_node_socket_name(pid_t pid);
// Those in `sockets` (/proc/net/unix), by pid. Pure.
std::vector<NodeSocketName> node_socket_names(std::string_view sockets);
std::vector<NodeSocketName> node_sockets_of_host();
// Returns whether the process of `caller` may give orders to one of `server`: the same user, or
// root.
bool may_order(uid_t caller, uid_t server);
// Returns the user whose process is at the other end. Nothing if the kernel does not say.
std::optional<uid_t> peer_of(int fd);

// Listens. The descriptor belongs to the caller.
Result<int> listen_locally(const std::string& name);
// Connects to the rendezvous of this host that listens at the port of one of these numeric
// addresses. It must be a process of this user; for root: of the user who listens there. -1: there
// is none. The descriptor belongs to the caller.
int connect_locally(const std::vector<std::string>& addresses, std::uint16_t port);
// Connects to a node's own socket. It must be of a process of this user; root may ask all. -1: it
// is gone, or another user's. kBusyNode: it is there and takes nobody now. The descriptor belongs
// to the caller.
inline constexpr int kBusyNode = -2;
int connect_to_node(const std::string& name);

}  // namespace ddprun::rendezvous
