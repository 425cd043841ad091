// Shows whether a job's launcher lives: `/dev/shm/ddprun_lock-<cookie>` is locked (flock(2)) as
// long as guardian or agent is there. The kernel frees the lock when both are gone, however they
// ended. It shows the lock alike to every pid and time namespace. So a free lock proves the
// launcher's end. A lock that is absent or may not be read proves nothing. It does I/O. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::agent {

// The name of the file in kScratchBase is this prefix and the job's cookie.
inline constexpr const char* kLockPrefix = "ddprun_lock-";

// Makes the file, locked: nobody ever sees it free before. The lock is the descriptor's and that of
// its copies in forked processes. It is closed at exec(). Errors name the file.
Result<FileHandle> take_owner_lock(const std::string& job_cookie);

// Removes the file. Call it when nothing of the job is left. Errors are ignored.
void remove_owner_lock(const std::string& job_cookie);

// A job whose launcher is gone.
struct GoneJob {
  std::string cookie;
  std::uint64_t pid_namespace = 0;  // of its launcher; 0: unknown
  uid_t owner = 0;                  // of the lock
  FileHandle lock;                  // held: no other sweep works on this job meanwhile

  // Returns whether a process or file of `uid` may be this job's. Anybody can make a file that
  // names another user's job. Only root's word counts for others: its workers may have given up
  // root.
  bool may_own(uid_t uid) const { return owner == 0 || owner == uid; }
};

// All jobs whose lock was free; it is ours from now on.
std::vector<GoneJob> take_gone_jobs();

}  // namespace ddprun::agent
