// The GPUs of NVIDIA's driver, by its files. No library of NVIDIA's is loaded. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::launcher {

// Empty texts are not known.
struct NvidiaGpu {
  std::string pci_address{};  // 0000:3b:00.0
  std::string uuid{};         // GPU-…; a driver that no program uses yet does not say it
  std::string model{};
};

// In the order of their PCI addresses, as CUDA numbers GPUs of one model. Device files go first. A
// container sees all of the machine's GPUs in /proc, but device files only for its own. If there
// are none, the driver's list counts. All paths are below `root`, which is "/" except in tests.
std::vector<NvidiaGpu> nvidia_gpus(const std::filesystem::path& root);

}  // namespace ddprun::launcher
