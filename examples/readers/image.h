// Photographs: JPEG and PNG to bytes, and what a model takes of them. Without LibTorch. Pure but
// for load_image(). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

struct Image {
  std::size_t width = 0, height = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3]: red, green, blue
};

// A header that says more would make us allocate without limit.
inline constexpr std::size_t kMaxImagePixels = std::size_t{100} << 20;

// By its first bytes a JPEG or a PNG. Grey images become colour; what is transparent is put on
// white. A JPEG may come out smaller, down to half, a quarter or an eighth, but with no side below
// `least_side`. That saves most of the work if a small picture is wanted. 0: as it is. The error
// says what is wrong with the bytes; a file that ends early is an error too.
Result<Image> decode_image(std::string_view bytes, std::size_t least_side = 0);

// Errors name the file.
Result<Image> load_image(const std::filesystem::path& path, std::size_t least_side = 0);

// A part of an image, in shares of its width and height.
struct Crop {
  double left = 0, top = 0, width = 1, height = 1;
  bool mirrored = false;  // left and right change places
};

// The largest square in the middle.
Crop middle_square(const Image& image);

// The part as side×side pixels by bilinear interpolation, [3, side, side]. Each is (value / 255 -
// mean) / deviation of its colour. These are ImageNet's, which most trained models want. `into` has
// 3·side·side elements.
void write_pixels(const Image& image, const Crop& crop, std::size_t side, std::span<float> into);

}  // namespace ddprun::worker
