#include "agent/shared_memory.h"

#include <filesystem>

#include "proto/assert.h"

namespace ddprun::agent {

namespace fs = std::filesystem;

void remove_shared_memory(const std::string& job_cookie) {
  DDPRUN_ASSERT(!job_cookie.empty());
  const std::string prefix = "ddprun-" + job_cookie;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) fs::remove(entry.path(), ignored);
  }
}

}  // namespace ddprun::agent
