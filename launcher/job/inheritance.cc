#include "launcher/job/inheritance.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "agent/processes/job_cookie.h"
#include "base/environment.h"
#include "launcher/scheduler/shared_token.h"
#include "proto/token_file.h"

namespace ddprun::launcher {
namespace {

std::vector<std::string> process_variables() {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

}  // namespace

Result<Inheritance> take_inheritance(const Options& options, const EnvLookup& env,
                                     const std::string& called) {
  const auto token = job_token(options, env);
  if (!token) return token.error();
  Inheritance inherited{.variables = process_variables(),
                        .token = *token,
                        .token_is_optional = token->empty(),
                        .job_cookie = agent::make_job_cookie().text(),
                        .called = called};
  wipe_variable(kTokenVariable);
  const auto path = shared_token_path(env);
  if (token->empty() && options.nodes.max > 1 && path)
    inherited.token = make_shared_token(*path).value_or("");
  return inherited;
}

}  // namespace ddprun::launcher
