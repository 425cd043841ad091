// The job's scratch folder on this host: `$TMPDIR/ddprun-<cookie>`, else below /tmp. It holds what
// workers read while they run (the Python hook, the workers' pages) and nothing that anybody wants
// to keep. Whoever ends the job removes it: the agent, the guardian when the agent was killed, or a
// later start of ddprun (leftovers.h). Call it before the process has a second thread.
#pragma once

#include <string>

#include "proto/result.h"

namespace ddprun::agent {

// The name of the folder is this prefix and the job's cookie.
inline constexpr const char* kScratchPrefix = "ddprun-";

// $TMPDIR, or /tmp.
std::string temporary_base();

// Makes it and returns its path, without symbolic links; only this user may enter it. Errors name it: it must not be there
// already.
Result<std::string> make_scratch_folder(const std::string& job_cookie);

// Removes it with all that is in it; does nothing if there is none. Errors are ignored.
void remove_scratch_folder(const std::string& job_cookie);

}  // namespace ddprun::agent
