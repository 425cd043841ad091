// CIFAR-10 as batches of tensors. Training images are shifted by up to 4 pixels and half of them
// mirrored. The numbers follow from epoch and index alone: the same in each run, whichever thread
// reads. batch() may be called from several threads.
#pragma once

#include <ATen/ATen.h>
#include <ddprun/readers.h>
#include <ddprun/tensor_dataset.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ddprun::examples {

// Mixes the bits of a number: SplitMix64's finisher.
inline std::uint64_t mixed(std::uint64_t number) {
  number += 0x9E3779B97F4A7C15U;
  number = (number ^ (number >> 30U)) * 0xBF58476D1CE4E5B9U;
  number = (number ^ (number >> 27U)) * 0x94D049BB133111EBU;
  return number ^ (number >> 31U);
}

class CifarSet {
 public:
  CifarSet(readers::LabelledImages images, bool augment)
      : images_(std::move(images)), augment_(augment) {}

  std::size_t size() const { return images_.count(); }
  TensorBatch batch(const BatchRequest& request) const {
    const auto count = static_cast<std::int64_t>(request.indices.size());
    auto inputs = at::empty({count, 3, kSide, kSide});
    std::vector<std::int64_t> labels;
    float* into = inputs.data_ptr<float>();
    for (const std::size_t index : request.indices) {
      write(index, augment_ ? mixed((request.epoch << 32U) + index) : kStill, into);
      into += 3 * kSide * kSide;
      labels.push_back(images_.labels[index]);
    }
    return {inputs, at::tensor(labels)};
  }

 private:
  static constexpr int kSide = 32;
  static constexpr std::uint64_t kStill = 4 + (4U << 8U);  // no shift, not mirrored

  // `random`: the bytes from below are shift to the right, shift down, and whether to mirror.
  void write(std::size_t index, std::uint64_t random, float* into) const {
    constexpr float kMean[] = {0.4914F, 0.4822F, 0.4465F},
                    kDeviation[] = {0.2470F, 0.2435F, 0.2616F};
    const int right = static_cast<int>((random & 0xFFU) % 9) - 4,
              down = static_cast<int>((random >> 8U & 0xFFU) % 9) - 4;
    const bool mirrored = (random >> 16U & 1U) != 0;
    const std::uint8_t* const pixels = images_.pixels.data() + index * 3 * kSide * kSide;
    for (int colour = 0; colour < 3; ++colour) {
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          const int from_x = (mirrored ? kSide - 1 - x : x) + right, from_y = y + down;
          const bool inside = from_x >= 0 && from_x < kSide && from_y >= 0 && from_y < kSide;
          const std::uint8_t value =
              inside ? pixels[(colour * kSide + from_y) * kSide + from_x] : std::uint8_t{0};
          *into++ = (static_cast<float>(value) / 255.0F - kMean[colour]) / kDeviation[colour];
        }
      }
    }
  }

  readers::LabelledImages images_;
  bool augment_;
};

}  // namespace ddprun::examples
