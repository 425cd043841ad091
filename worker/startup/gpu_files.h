// The files of NVIDIA's driver. They tell of GPUs without CUDA. A process that has begun with CUDA
// has some of them open. Then no process that it forks can use a GPU. Linux.
#pragma once

#include <string>

namespace ddprun::worker {

// Returns the path of an open file of NVIDIA's driver, or an empty text. `folder` has a link for
// each open file, as /proc/self/fd.
std::string open_gpu_file(const std::string& folder = "/proc/self/fd");

// Says whether NVIDIA's driver is loaded on this machine, or in this container.
bool has_gpu_driver();

}  // namespace ddprun::worker
