// The doctor between nodes. Each node runs one worker of a small job of ddprun's own. This is that
// worker's work: it opens a fresh port and says so in the job's store. Then it connects to all
// others, and says what came of it. It ends within seconds, whatever the others do. The only user
// of a thread beside gRPC's: it answers others while this node waits at the store.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/result.h"
#include "launcher/doctor/findings.h"
#include "launcher/doctor/pairs.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// For one connection with its 64 KiB each way.
inline constexpr std::chrono::milliseconds kPairLimit{1800};
// Pairs that are tried at once: a node has a limit of open files.
inline constexpr std::size_t kPairsAtOnce = 64;
// Returns the time that a node may need if it reaches none of the others. Pure.
std::chrono::milliseconds time_of_pairs(std::size_t nodes);

// Returns the findings of the nodes, the same on all of them. `self`: host name, torch and driver
// of this node. Errors: the store is not reached, or a node says nothing.
Result<Findings> examine_peers(const WorkerEnv& worker, Peer self);

}  // namespace ddprun::launcher
