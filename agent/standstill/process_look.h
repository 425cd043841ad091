// Looks at a worker and the processes below it, in /proc. It only reads. Any thread.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "agent/standstill/rank_look.h"
#include "agent/standstill/socket_bytes.h"

namespace ddprun::agent {

// A process that is gone, or that we may not read, counts nothing. `sockets`: those of
// socket_bytes().
ProcessLook look_at_process(pid_t worker, const SocketBytes& sockets);

// CPU time of the worker and of all below it.
std::chrono::milliseconds cpu_of(pid_t worker);

}  // namespace ddprun::agent
