#include "agent/processes/containment.h"

#include <filesystem>

#include "agent/processes/descendants.h"
#include "agent/processes/folder_names.h"
#include "base/assert.h"
#include "base/log.h"

namespace ddprun::agent {

namespace fs = std::filesystem;

int Containment::begin_attempt() {
  if (!next_) next_ = JobCgroup::make(job_cookie_, ++cgroups_);
  cgroup_ = std::move(*next_);
  next_.reset();
  return cgroup_.folder();
}

int Containment::standby_cgroup() {
  if (!next_) next_ = JobCgroup::make(job_cookie_, ++cgroups_);
  return next_->folder();
}

void Containment::end(std::chrono::milliseconds limit, std::chrono::milliseconds grace,
                      const std::set<pid_t>& standbys) {
  if (next_) next_->kill();
  ask(grace, standbys);
  sweep(limit, {});
  if (next_) next_->remove();
}

void Containment::end_attempt(std::chrono::milliseconds limit, std::chrono::milliseconds grace,
                              const std::set<pid_t>& standbys) {
  ask(grace, standbys);
  sweep(limit, standbys);
}

void Containment::ask(std::chrono::milliseconds grace, const std::set<pid_t>& standbys) {
  if (grace.count() == 0) return;
  const std::vector<LeftBehind> asked = ask_descendants(grace, standbys);
  if (!asked.empty()) log::warning(describe(asked));
}

void Containment::sweep(std::chrono::milliseconds limit, const std::set<pid_t>& spared) {
  // This comes first: it also kills what forks faster than end_descendants() can look. The cgroup
  // can be removed only when it is empty, so after the sweep. Shared memory comes last: a process
  // that still lives could make some.
  cgroup_.kill();
  for (const Stuck& left : end_descendants(limit, spared)) log::warning(describe(left));
  cgroup_.remove();
  // Before the first attempt there is none, and a long list of others' names need not be read.
  if (cgroups_ > 0) remove_shared_memory(job_cookie_);
}

void remove_shared_memory(const std::string& job_cookie) {
  DDPRUN_ASSERT(!job_cookie.empty());
  for (const std::string& name : names_in("/dev/shm", kSharedMemoryPrefix + job_cookie)) {
    std::error_code failed;  // not thrown: a job that ended well must not fail because of /dev/shm
    fs::remove(fs::path("/dev/shm") / name, failed);
  }
}

}  // namespace ddprun::agent
