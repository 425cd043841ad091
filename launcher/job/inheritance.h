// Takes from the process of the launcher the needs of a job: variables, the token, a fresh cookie.
#pragma once

#include <string>

#include "base/result.h"
#include "launcher/job/plan.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// Takes from this process the values that a job, or the doctor's, needs. The token is out of our
// environment from now on. A process that may read /proc/<pid>/environ would have it.
// `called`: the name of the program in its lines. Errors are those of job_token().
Result<Inheritance> take_inheritance(const Options& options, const EnvLookup& env,
                                     const std::string& called);

}  // namespace ddprun::launcher
