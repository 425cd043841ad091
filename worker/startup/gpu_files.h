// Whether this process has begun with CUDA. The driver's files are then open, and a forked process
// can use no GPU. Linux.
#pragma once

#include <string>

namespace ddprun::worker {

// Returns the path of an open file of NVIDIA's driver, or an empty text. `folder` has a link for
// each open file, as /proc/self/fd.
std::string open_gpu_file(const std::string& folder = "/proc/self/fd");

}  // namespace ddprun::worker
