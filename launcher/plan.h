// From what the user asked for to what the agent is told: options, command and inherited
// environment in, AgentConfig out. Pure but for job_token(), which may read the token's file.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "launcher/command.h"
#include "launcher/options.h"

namespace ddprun::launcher {

// A token file longer than this is no token file.
inline constexpr std::size_t kMaxTokenBytes = 4096;

// What a worker's environment and the control connections start from.
struct Inherited {
  std::vector<std::string> variables;  // NAME=value, this process's own
  std::string token;
  std::string job_cookie;  // agent/processes/job_cookie.h
};

struct Plan {
  agent::AgentConfig agent;
  std::vector<std::string> notices;  // lines to print before the start, without `ddprun: `
};

// The secret that every control connection of the job carries: $DDPRUN_TOKEN, else the content of
// the file named by $DDPRUN_TOKEN_FILE (surrounding blanks dropped), else the run id, which keeps
// jobs apart but is no secret. One-node jobs listen for nobody and need none. Errors name the file;
// the token itself is never printed.
Result<std::string> job_token(const Options& options, const EnvLookup& env);

Plan make_plan(const Options& options, const Command& command, Inherited inherited);

}  // namespace ddprun::launcher
