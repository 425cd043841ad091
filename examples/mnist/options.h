// The command line of `mnist`: argv in, Options or one clear line out. Pure; prints nothing and
// ends nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "proto/result.h"

namespace ddprun::examples {

enum class ProgressMode : std::uint8_t { kAuto, kAlways, kNever };

struct Options {
  // Folder of the four IDX files; empty: the digits that come with the project.
  std::filesystem::path data;
  int epochs = 5;
  int batch_size = 32;  // samples a worker and step
  double lr = 0.05;
  std::uint64_t seed = 1;
  std::filesystem::path checkpoint;  // empty: none is written
  bool resume = false;               // also where no restart is under way
  ProgressMode progress = ProgressMode::kAuto;
  bool help = false;
};

inline constexpr int kMaxEpochs = 100'000;     // a typing error, not a plan
inline constexpr int kMaxBatchSize = 100'000;  // as many first-layer activations are 8 GB

// `arguments` without the program's name. `--flag value` and `--flag=value`; the last of a repeated
// flag counts. The error is one line that names the flag, the value and what is accepted.
Result<Options> parse_options(const std::vector<std::string>& arguments);

// The text of --help, ending in a newline.
std::string help_text();

}  // namespace ddprun::examples
