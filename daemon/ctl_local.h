// ddpctl without a rendezvous: this user's jobs on this host, each asked at its own socket
// (rendezvous/control/node_socket.h). Blocks. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/ctl_options.h"

namespace ddprun::daemon {

// Returns the answer of the job that the question names, or of all jobs. One that does not answer
// is left out. kUnknown: there is none; kRefused: several are meant.
rendezvous::ControlAnswer ask_this_host(const CtlOptions& options);

// Returns which of these jobs `word` names: an id, the pid of a ddprun, a log folder or its name.
// `folder`: `word` as a path without links; empty: there is no such folder. An empty word names the
// only job. Errors: kNotFound, none; kInvalidArgument, several, and their pids. Pure.
Result<std::size_t> choose_job(const std::vector<rendezvous::JobSnapshot>& jobs,
                               const std::string& word, const std::string& folder);

}  // namespace ddprun::daemon
