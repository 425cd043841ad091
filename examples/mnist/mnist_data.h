// Reads MNIST from its IDX files, gzipped or plain, into memory. The layout is that of the
// database's authors: a magic number (0x08 for bytes, then the number of dimensions), one size per
// dimension, then the bytes. All numbers have 32 bits and are big-endian. This code uses no
// LibTorch and does not split the data. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "proto/result.h"

namespace ddprun::examples {

constexpr std::size_t kDigitSide = 28;  // pixels
constexpr std::size_t kDigitPixels = kDigitSide * kDigitSide;

// A damaged header must not make us allocate without limit. The largest set with this layout has
// fewer digits (EMNIST: 814,255); so many digits are 0.8 GB of pixels.
constexpr std::size_t kMaxDigits = 1'000'000;

struct Digits {
  std::vector<std::uint8_t> pixels;  // [count, 28, 28], 0 is paper, 255 is ink
  std::vector<std::uint8_t> labels;  // [count], each 0 … 9

  std::size_t count() const { return labels.size(); }
};

// The digits of one part ("train" or "t10k") of the set in `folder`. Reads the files
// `<part>-images-idx3-ubyte` and `<part>-labels-idx1-ubyte`, each with or without `.gz`. Errors
// name the file and what is wrong with it: missing, wrong magic number, not 28×28, too many digits,
// cut short, longer than its header says, a label above 9, unequal counts, no digits.
Result<Digits> read_digits(const std::filesystem::path& folder, const std::string& part);

}  // namespace ddprun::examples
