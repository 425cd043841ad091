// From the user's wishes to the agent's orders: options, command and inherited environment go in,
// AgentConfig comes out. Pure, but job_token() may read the token's file. It starts nothing and
// prints nothing. Main thread, before the agent starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "launcher/job/command.h"
#include "launcher/options/options.h"
#include "proto/token_file.h"

namespace ddprun::launcher {

// The inheritance from this process: the start of each worker's environment, the job's token and
// its cookie.
struct Inheritance {
  std::vector<std::string> variables;  // NAME=value, this process's own
  std::string token;                   // empty: none
  bool token_is_optional = false;      // nobody asked for it (scheduler/shared_token.h)
  std::string job_cookie;              // agent/processes/job_cookie.h
  std::string called{kProgramName};    // the name that ddprun was started by
};

// `agent` is for run_agent().
struct Plan {
  agent::AgentConfig agent;
  std::vector<std::string> notices;  // lines to print before the start, without `ddprun: `
};

// The secret that every control connection of the job carries. It is $DDPRUN_TOKEN; else the
// content of the file that $DDPRUN_TOKEN_FILE names, without blanks around it; else the run id. The
// run id keeps jobs apart but is no secret. A job of one node opens no control port, so it needs no
// token. Errors name the file, or what is too long for several nodes. The token itself is never
// printed.
Result<std::string> job_token(const Options& options, const EnvLookup& env);

// OMP_NUM_THREADS of each worker, where the environment has none. torchrun's rule: by default each
// worker starts a thread for each CPU, and several workers would fight. If a scheduler gave this
// process CPUs of its own, the workers share those. If it is nothing, it stays unset.
std::optional<int> worker_threads(const Options& options);

// `options` must be valid and `command` complete: this function cannot fail.
Plan make_plan(const Options& options, const Command& command, Inheritance inherited);

}  // namespace ddprun::launcher
