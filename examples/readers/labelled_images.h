// Small images of one size with their labels, all in memory. The readers of IDX files (MNIST and
// its kin) and of CIFAR-10 give them. Without LibTorch; the readers split no data. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

struct LabelledImages {
  std::size_t channels = 1;
  std::size_t side = 0;              // pixels; images are square
  std::vector<std::uint8_t> pixels;  // [count, channels, side, side]
  std::vector<std::uint8_t> labels;  // [count], each 0 … classes-1

  std::size_t count() const { return labels.size(); }
};

// A damaged header must not make us allocate without limit. The largest set of this layout has
// fewer images (EMNIST: 814,255).
inline constexpr std::size_t kMaxImages = 1'000'000;

struct IdxOptions {
  std::size_t side = 28;
  std::size_t classes = 10;
};

// One part ("train" or "t10k") of an IDX set in `folder`: MNIST, Fashion-MNIST, KMNIST. Reads the
// files `<part>-images-idx3-ubyte` and `<part>-labels-idx1-ubyte`, each with or without `.gz`. An
// IDX file is a magic number, one size a dimension, then the bytes. The magic number is 0x08 for
// bytes, then the number of dimensions. Numbers are 32 bits, big-endian. Errors name the file and
// its fault: missing, wrong magic number, another side, too many images, cut short. Other faults
// are more bytes than its header says, a label too high, unequal counts, no images.
Result<LabelledImages> read_idx(const std::filesystem::path& folder, const std::string& part,
                                const IdxOptions& options = {});

// CIFAR-10's binary version: "train" is `data_batch_1.bin` … `data_batch_5.bin`, "test" is
// `test_batch.bin`. A record is a label and 3×32×32 bytes, red, green, blue. Errors name the
// file: missing, no whole records, a label above 9, empty.
Result<LabelledImages> read_cifar10(const std::filesystem::path& folder, const std::string& part);

}  // namespace ddprun::worker
