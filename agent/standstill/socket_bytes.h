// The bytes that went over this host's TCP connections. The bytes that a process has read
// (proc_pid_io(5)) lack those that came by recv(2). Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

namespace ddprun::agent {

// Received and acknowledged, by the socket's inode.
using SocketBytes = std::unordered_map<std::uint64_t, std::uint64_t>;

// Those of the connections in our network namespace, as sock_diag(7) has them. Empty where the
// kernel does not tell.
SocketBytes socket_bytes();

// The sum over the sockets that this process has open.
std::uint64_t bytes_of_sockets(pid_t pid, const SocketBytes& sockets);

}  // namespace ddprun::agent
