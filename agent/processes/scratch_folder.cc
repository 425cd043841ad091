#include "agent/processes/scratch_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/assert.h"
#include "base/limit_hint.h"

namespace ddprun::agent {
namespace {

std::string scratch_path(const std::string& job_cookie) {
  DDPRUN_ASSERT(!job_cookie.empty());
  return fmt::format("{}/{}{}", kScratchBase, kScratchPrefix, job_cookie);
}

}  // namespace

Result<std::string> make_scratch_folder(const std::string& job_cookie) {
  constexpr mode_t kMode = 0700;
  std::string path = scratch_path(job_cookie);
  if (::mkdir(path.c_str(), kMode) == 0) return path;
  return Error(ErrorCode::kSystem,
               fmt::format("make the folder {}: {}", path, describe_errno(errno)));
}

void remove_scratch_folder(const std::string& job_cookie) {
  std::error_code ignored;
  std::filesystem::remove_all(scratch_path(job_cookie), ignored);
}

}  // namespace ddprun::agent
