// The real answers to what options.h and command.h ask: CPUs, GPUs, files, PATH, a fresh id. A thin
// shell over /proc, /dev and the file system. It decides nothing and loads no CUDA. Main thread, at
// start.
#pragma once

#include <string>
#include <string_view>

#include "launcher/job/command.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// CPUs, GPUs and ids of this machine. `env` is asked for CUDA_VISIBLE_DEVICES.
HostFacts real_host_facts(const EnvLookup& env);

// Files, PATH and interpreters of this machine. `env` is asked for PATH and PYTHON_EXEC.
CommandFacts real_command_facts(const EnvLookup& env);

// Returns how many of `device_count` GPUs a CUDA program sees under `visible`
// (CUDA_VISIBLE_DEVICES). As CUDA does, counts entries up to the first that names no device (CUDA
// C++ Programming Guide, "CUDA Environment Variables"). Pure.
int visible_gpu_count(int device_count, const std::optional<std::string>& visible);

}  // namespace ddprun::launcher
