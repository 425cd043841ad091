// A token that nobody asked for. The nodes of a scheduler's job mostly share the user's home. The
// first of them makes a file there, named by the scheduler's job, and all read it. If there is no
// home, or it is read-only, there is no such token. If each host has its own home, others do not
// know it. A job must start as without one then. Files; any thread.
#pragma once

#include <optional>
#include <string>

#include "proto/worker_env.h"

namespace ddprun::launcher {

// The file's path: ~/.ddprun/slurm-CLUSTER-JOB or ~/.ddprun/mpi-NAMESPACE. Nothing if no scheduler
// says which job this is, or there is no home. Pure.
std::optional<std::string> shared_token_path(const EnvLookup& env);

// Reads that file. Nothing if it is not there. Or it or its folder is another user's, or others can
// read or change it.
std::optional<std::string> read_shared_token(const std::string& path);
// The same, and makes the file if it is not there. If several nodes come at a time, one makes it.
std::optional<std::string> make_shared_token(const std::string& path);

}  // namespace ddprun::launcher
