// The command line of the programs that train beside Python. parity_trainer.py has the same.
#pragma once

#include <ATen/Parallel.h>
#include <ddprun/process.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

namespace ddprun::worker {

// The words of a command line. The first one may be --device=cpu or --device=cuda.
struct Words {
  Device device = Device::kCpu;
  std::vector<std::string> modes;
};

inline Words words_of(int argc, char** argv) {
  Words words{Device::kCpu, {argv + 1, argv + argc}};
  if (words.modes.empty() || !words.modes.front().starts_with("--device=")) return words;
  if (words.modes.front() == "--device=cuda") words.device = Device::kCuda;
  words.modes.erase(words.modes.begin());
  return words;
}

// Rank 0 prints each mode and `end_of(mode, ranks)`, which all ranks call.
template <typename EndOf>
void print_ends(int argc, char** argv, EndOf end_of) {
  at::set_num_threads(1);
  const Words words = words_of(argc, argv);
  const Process process = bootstrap({.device = words.device});
  for (const std::string& mode : words.modes) {
    const std::string end = end_of(mode, *process.collective);
    if (process.world.rank == 0) fmt::print("{} {}\n", mode, end);
    std::fflush(stdout);
  }
}

}  // namespace ddprun::worker
