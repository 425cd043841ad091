#include "worker/collective/record_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace ddprun::worker {

// First under another name: a reader of `path` never finds half of it.
std::error_code write_record_file(const std::string& path, std::string_view text) {
  const std::string unfinished = path + ".unfinished";
  errno = 0;
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code failed(errno == 0 ? EIO : errno, std::generic_category());
  if (file) std::filesystem::rename(unfinished, path, failed);
  if (failed) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
  }
  return failed;
}

}  // namespace ddprun::worker
