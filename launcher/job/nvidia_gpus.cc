#include "launcher/job/nvidia_gpus.h"

#include <algorithm>

#include "launcher/job/device_files.h"
#include "launcher/options/flag_values.h"

namespace ddprun::launcher {

namespace fs = std::filesystem;

std::vector<NvidiaGpu> nvidia_gpus(const fs::path& root) {
  const fs::path folder = root / "proc/driver/nvidia/gpus";
  const std::vector<int> nodes = numbers_in(root / "dev", "nvidia");
  std::vector<NvidiaGpu> gpus;
  for (const std::string& address : names_in(folder)) {
    const std::string text = read_text(folder / address / "information");
    const auto minor = parse_int(value_in(text, "Device Minor", ':'));
    const bool is_hidden =
        !nodes.empty() && minor && !std::binary_search(nodes.begin(), nodes.end(), *minor);
    if (is_hidden) continue;
    NvidiaGpu gpu{address, value_in(text, "GPU UUID", ':'), value_in(text, "Model", ':')};
    // The driver writes GPU-????????-… until a program has used the GPU.
    if (gpu.uuid.find('?') != std::string::npos) gpu.uuid.clear();
    gpus.push_back(std::move(gpu));
  }
  if (!nodes.empty()) gpus.resize(nodes.size());
  return gpus;
}

}  // namespace ddprun::launcher
