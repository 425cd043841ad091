// Whether this node reaches the store of a round. A firewall that lets only the rendezvous through
// would show itself much later, as a time-out in each worker. Loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// Two connections are tried, and the kernel says SYN three times in all. That many packets are not
// lost by chance.
inline constexpr std::chrono::milliseconds kStoreProbeLimit{2700};

// Connects to the store of `round`, once, beside the start of the workers: it holds up nobody.
// Calls `unreachable` with one line for people if there is no answer within kStoreProbeLimit. It is
// not called if the store is reached. It is not called for a name, either: then it has the
// endpoint's port, which the rendezvous has reached. `own_name` is this host's.
void probe_store(asio::io_context& loop, const rendezvous::Round& round,
                 const std::string& own_name, std::function<void(const std::string&)> unreachable);

}  // namespace ddprun::agent
