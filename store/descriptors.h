// How many file descriptors this process may have, and which of them connections may take. Every
// connection costs one, and the launcher needs some of its own at any time: for workers, their
// pipes and logs, and the rendezvous. So a process that hosts a store raises its limit once, and
// connections leave a reserve. No state here; any thread.
#pragma once

#include <sys/resource.h>

namespace ddprun::store {

// Descriptors that the store's connections never take. A worker costs the launcher four or five,
// with its pipes, watch and logs: room for 50 workers of a node.
inline constexpr rlim_t kReservedDescriptors = 256;

// Raises the soft RLIMIT_NOFILE to the hard one and returns what was set before: children must be
// given it back, since programs with select() break on descriptors above 1,023. What cannot be
// raised stays; that is no error.
rlimit raise_descriptor_limit();

// The lowest descriptor that a connection must not have where the process may open `soft`. The
// kernel always gives out the lowest free number, so one that reaches this says that all below are
// in use. The reserve is kReservedDescriptors, but never more than a quarter.
int first_reserved_descriptor(rlim_t soft);

// The same, for the limit that the process has now.
int first_reserved_descriptor();

}  // namespace ddprun::store
