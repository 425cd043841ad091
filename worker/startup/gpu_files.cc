#include "worker/startup/gpu_files.h"

#include <filesystem>
#include <system_error>

namespace ddprun::worker {

std::string open_gpu_file(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder, gone)) {
    std::string path = fs::read_symlink(entry, gone).string();
    if (path.starts_with("/dev/nvidia")) return path;
  }
  return "";
}

bool has_gpu_driver() {
  std::error_code absent;
  return std::filesystem::exists("/dev/nvidiactl", absent) ||
         std::filesystem::exists("/proc/driver/nvidia", absent);
}

}  // namespace ddprun::worker
