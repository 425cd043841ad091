// `ddprun doctor` on several nodes: a job of ddprun's own whose workers are this program again, one
// on each node. They meet as the workers of the user's job will, at the same rendezvous, so that is
// tried, too. Main thread; it comes after all checks of this node, and forks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/doctor/pairs.h"
#include "launcher/job/plan.h"
#include "launcher/options/options.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// A job may wait for hours until all nodes are there; who looks wants an answer.
inline constexpr std::chrono::seconds kRendezvousLimit{30};
// The job's, with no limit above that.
RendezvousConf doctor_rendezvous(RendezvousConf conf);

// Returns an exit code: 0 if no check failed. The first node prints what was found; each prints
// that they did not meet, which they have kRendezvousLimit for. `self`: host name, torch and driver
// of this node.
int examine_between(const Options& job, Inheritance inherited, const Peer& self, bool as_json);

// Returns whether this process is such a worker.
bool is_peer(const std::vector<std::string>& args, const EnvLookup& env);

// Runs such a worker; returns its exit code.
int run_peers(const EnvLookup& env);

}  // namespace ddprun::launcher
