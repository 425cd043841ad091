// `ddprun doctor` on several nodes: a job of ddprun's own whose workers are this program again, one
// on each node. They meet as the workers of the user's job will, at the same rendezvous, so that is
// tried, too. Main thread; it comes after all checks of this node, and forks.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/pairs.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// Returns an exit code: 0 if no check failed. The first node prints what was found. `self`: host
// name, torch and driver of this node.
int examine_between(const Options& job, Inherited inherited, const Peer& self, bool json);

// Whether this process is such a worker.
bool is_peer(const std::vector<std::string>& args, const EnvLookup& env);

// What it does; returns its exit code.
int run_peers(const EnvLookup& env);

}  // namespace ddprun::launcher
