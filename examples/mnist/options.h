// The command line of `mnist`: takes the arguments, gives Options or an error of one line. Pure: it
// prints nothing, ends nothing and touches no files. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "proto/result.h"

namespace ddprun::examples {

// Whether steps are shown, and how (progress.h). kAuto: it depends on whether stdout is a terminal.
enum class ProgressMode : std::uint8_t { kAuto, kAlways, kNever };

struct Options {
  // Folder of the four IDX files; empty: the digits that come with the project.
  std::filesystem::path data;
  int epochs = 5;
  int batch_size = 32;  // samples per worker and step
  double lr = 0.05;
  std::uint64_t seed = 1;
  std::filesystem::path checkpoint;  // empty: none is written
  bool resume = false;               // go on from the checkpoint, whichever job saved it
  ProgressMode progress = ProgressMode::kAuto;
  bool help = false;
};

// Larger numbers are typing errors. The first layer's activations of 100,000 samples are 8 GB.
inline constexpr int kMaxEpochs = 100'000;
inline constexpr int kMaxBatchSize = 100'000;

// Takes `arguments` without the program's name. Understands `--flag value` and `--flag=value`. The
// last of a repeated flag counts. The error is one line: the flag, the value and what is accepted.
Result<Options> parse_options(const std::vector<std::string>& arguments);

// The text of --help, ending in a newline.
std::string help_text();

}  // namespace ddprun::examples
