// The job's scratch folder on this host, in memory: `/dev/shm/ddprun_scratch-<cookie>`. Several
// hosts may share /tmp, and a cookie is one host's. It holds files that workers read while they
// run: the Python hook, the workers' pages. It holds nothing that anybody wants to keep. The
// process that ends the job removes it: the agent, or the guardian when the agent was killed. A
// later start of ddprun removes what both have left (orphans.h).
#pragma once

#include <string>

#include "base/result.h"

namespace ddprun::agent {

inline constexpr const char* kScratchBase = "/dev/shm";
// The name of the folder is this prefix and the job's cookie.
inline constexpr const char* kScratchPrefix = "ddprun_scratch-";

// Makes it and returns its path; only this user may enter it. Errors name it: it must not be there
// already.
Result<std::string> make_scratch_folder(const std::string& job_cookie);

// Removes it with all that is in it; does nothing if there is none. Errors are ignored.
void remove_scratch_folder(const std::string& job_cookie);

}  // namespace ddprun::agent
