#include "base/file_look.h"

#include <sys/stat.h>

#include <utility>

#include "base/regular_file.h"

namespace ddprun {
namespace {

FileContent read(const std::string& path, std::size_t most_bytes) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return {};
  return {.is_there = true,
          .inode = facts.st_ino,
          .size = facts.st_size,
          .written_ns = facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec,
          .start = most_bytes > 0 ? read_file_start(path, most_bytes, 0) : std::string()};
}

}  // namespace

bool FileLook::begin() {
  if (question_) return false;
  content_ = std::make_shared<FileContent>();
  question_.emplace([path = path_, most = most_bytes_, content = content_] {
    *content = read(path, most);
    return content->start.size();
  });
  return true;
}

std::optional<FileContent> FileLook::until(std::chrono::steady_clock::time_point end) {
  if (!question_ || !question_->until(end)) return std::nullopt;
  question_.reset();
  return std::move(*content_);
}

}  // namespace ddprun
