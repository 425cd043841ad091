// Reads MNIST from its IDX files, gzipped or plain, into memory. The layout is the one that the
// database's authors give: big-endian magic number (0x08 for bytes, then the number of dimensions),
// one 32-bit size a dimension, then the bytes. Knows no LibTorch and splits nothing. Any thread.
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

// More than the largest set with this layout has (EMNIST: 814,255), and 0.8 GB of pixels: a damaged
// header cannot make us allocate more.
constexpr std::size_t kMaxDigits = 1'000'000;

struct Digits {
  std::vector<std::uint8_t> pixels;  // [count, 28, 28], 0 is paper, 255 is ink
  std::vector<std::uint8_t> labels;  // [count], each 0 … 9

  std::size_t count() const { return labels.size(); }
};

// The digits of one part ("train" or "t10k") of the set in `folder`: `<part>-images-idx3-ubyte` and
// `<part>-labels-idx1-ubyte`, each with or without `.gz`. Errors name the file and what is wrong
// with it: missing, wrong magic number, not 28×28, too many, cut short, longer than its header
// says, a label above 9, unequal counts, no digits.
Result<Digits> read_digits(const std::filesystem::path& folder, const std::string& part);

}  // namespace ddprun::examples
