// The command line of the programs that train beside Python. parity_trainer.py has the same.
#pragma once

#include <ATen/Parallel.h>
#include <ddprun/process.h>
#include <fmt/format.h>

#include <string>
#include <vector>

namespace ddprun::worker {

// Each word of the command line is a mode: rank 0 prints it and `end_of(mode, ranks)`, which all
// ranks call.
template <typename EndOf>
void print_ends(int argc, char** argv, EndOf end_of) {
  at::set_num_threads(1);
  const Process process = bootstrap();
  for (const std::string& mode : std::vector<std::string>(argv + 1, argv + argc)) {
    const std::string end = end_of(mode, *process.collective);
    if (process.world.rank == 0) fmt::print("{} {}\n", mode, end);
  }
}

}  // namespace ddprun::worker
