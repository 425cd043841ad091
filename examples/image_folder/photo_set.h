// Photographs of a folder as batches of tensors, read and decoded when they are asked for. batch()
// may be called from several threads.
#pragma once

#include <ATen/ATen.h>
#include <ddprun/readers.h>
#include <ddprun/tensor_dataset.h>

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace ddprun::examples {

class PhotoSet {
 public:
  PhotoSet(readers::ImageFolder folder, std::size_t side, bool augment)
      : folder_(std::move(folder)), side_(side), augment_(augment) {}

  std::size_t size() const { return folder_.count(); }
  std::int64_t classes() const { return static_cast<std::int64_t>(folder_.classes.size()); }

  // Throws std::runtime_error with the name of a file that cannot be decoded.
  TensorBatch batch(const BatchRequest& request) const {
    const auto count = static_cast<std::int64_t>(request.indices.size()),
               side = static_cast<std::int64_t>(side_);
    auto inputs = at::empty({count, 3, side, side});
    const std::size_t pixels = 3 * side_ * side_;
    std::span all(inputs.data_ptr<float>(), request.indices.size() * pixels);
    std::vector<std::int64_t> labels;
    for (std::size_t i = 0; i < request.indices.size(); ++i) {
      const auto& file = folder_.files[request.indices[i]];
      // A part of a photograph has still half of its side or more.
      const auto image = readers::load_image(file.path, augment_ ? 2 * side_ : side_);
      const auto crop = augment_ ? random_part(image, request.epoch, request.indices[i])
                                 : readers::middle_square(image);
      readers::write_pixels(image, crop, side_, all.subspan(i * pixels, pixels));
      labels.push_back(file.label);
    }
    return {inputs, at::tensor(labels)};
  }

 private:
  // A square with half of the shorter side or more, anywhere, and in half of the cases mirrored.
  static readers::Crop random_part(const readers::Image& image, std::uint64_t epoch,
                                   std::size_t index) {
    std::seed_seq seed{static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(index)};
    std::mt19937 random(seed);
    const auto share = [&random] {
      return static_cast<double>(random()) / static_cast<double>(std::mt19937::max());
    };
    auto crop = readers::middle_square(image);
    const double part = 0.5 + 0.5 * share();
    crop.width *= part;
    crop.height *= part;
    crop.left = (1 - crop.width) * share();
    crop.top = (1 - crop.height) * share();
    crop.mirrored = share() < 0.5;
    return crop;
  }

  readers::ImageFolder folder_;
  std::size_t side_;
  bool augment_;
};

}  // namespace ddprun::examples
