// File descriptors: how many this process may have, and which of them the store's connections may
// take. Every connection costs one. The launcher also needs some at any time: for workers, their
// pipes and logs, and the rendezvous. So a process that serves a store raises its limit once,
// before it makes the server. Connections leave a reserve. No state here; any thread.
#pragma once

#include <sys/resource.h>

namespace ddprun {

// Descriptors that the store's connections never take. A worker costs the launcher four or five,
// with its pipes, watch and logs. 256 are enough for 50 workers of a node.
inline constexpr rlim_t kReservedDescriptors = 256;

// Raises the soft RLIMIT_NOFILE to the hard one. Returns what was set before: give it back to every
// child, because programs with select() break on descriptors above 1,023. If the limit cannot be
// raised it stays; that is no error.
rlimit raise_descriptor_limit();

// The lowest descriptor that a connection must not have in a process that may open `soft`. The
// kernel always gives out the lowest free number (open(2)). So if a connection gets this number,
// all numbers below are in use. The reserve is kReservedDescriptors, but at most a quarter of
// `soft`.
int first_reserved_descriptor(rlim_t soft);

// The same for the limit that the process has now.
int first_reserved_descriptor();

}  // namespace ddprun
