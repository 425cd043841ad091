#include "agent/processes/shared_memory.h"

#include <filesystem>

#include "proto/assert.h"

namespace ddprun::agent {

namespace fs = std::filesystem;

void remove_shared_memory(const std::string& job_cookie) {
  DDPRUN_ASSERT(!job_cookie.empty());
  const std::string prefix = "ddprun-" + job_cookie;
  std::error_code why;  // never a throw: also done when a job ended well
  for (fs::directory_iterator at("/dev/shm", why), end; at != end; at.increment(why)) {
    std::error_code gone;
    if (at->path().filename().string().starts_with(prefix)) fs::remove(at->path(), gone);
  }
}

}  // namespace ddprun::agent
