#include <ddprun/readers.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>

#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

constexpr std::size_t kColours = 3;
constexpr std::size_t kMaxImageBytes = std::size_t{256} << 20;

Error broken(std::string what) { return {ErrorCode::kProtocol, std::move(what)}; }

bool fits(std::size_t width, std::size_t height) {
  return width > 0 && height > 0 && width <= kMaxImagePixels / height;
}

struct DestroyJpeg {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// Some cameras leave bytes between markers: of libjpeg's warnings, the one that loses nothing.
bool is_harmless(std::string_view warning) {
  return warning.find("extraneous bytes") != std::string_view::npos;
}

// Returns whether only pixels' data, and no marker, begins with this byte behind 0xFF.
bool is_in_scan(char code) { return code == '\0' || (code >= '\xD0' && code <= '\xD7'); }

// The JPEG without the bytes between its markers; empty if it ends before its end marker. libjpeg
// tells of its first warning alone, so behind these bytes it would not tell what is missing.
std::string without_stray_bytes(std::string_view bytes) {
  std::string clean(bytes.substr(0, 2));
  for (std::size_t at = 2;;) {
    at = bytes.find('\xFF', at);
    while (at < bytes.size() && bytes[at] == '\xFF') ++at;
    if (at >= bytes.size()) return {};
    const char code = bytes[at++];
    if (is_in_scan(code)) continue;
    clean += '\xFF';
    clean += code;
    if (code == '\xD9') return clean;
    if (bytes.size() - at < 2) return {};
    const std::size_t length = static_cast<unsigned char>(bytes[at]) * std::size_t{256} +
                               static_cast<unsigned char>(bytes[at + 1]);
    std::size_t end = at + std::max<std::size_t>(length, 2);
    if (end > bytes.size()) return {};
    if (code == '\xDA') {  // a scan: to the next marker
      while (end + 1 < bytes.size() && (bytes[end] != '\xFF' || is_in_scan(bytes[end + 1]))) ++end;
    }
    clean += bytes.substr(at, end - at);
    at = end;
  }
}

// The smallest of 1, 1/2, 1/4 and 1/8 that leaves both sides long enough.
tjscalingfactor smallest_scale(int width, int height, std::size_t least_side) {
  tjscalingfactor chosen{1, 1};
  if (least_side == 0) return chosen;
  for (const int denominator : {2, 4, 8}) {
    const tjscalingfactor scale{1, denominator};
    const auto shorter = static_cast<std::size_t>(TJSCALED(std::min(width, height), scale));
    if (shorter >= least_side) chosen = scale;
  }
  return chosen;
}

// Adobe's four inks, which are stored inverted, to three colours.
std::vector<std::uint8_t> to_rgb(const std::vector<std::uint8_t>& inks) {
  std::vector<std::uint8_t> rgb;
  rgb.reserve(inks.size() / 4 * kColours);
  for (std::size_t at = 0; at < inks.size(); at += 4) {
    for (std::size_t colour = 0; colour < kColours; ++colour) {
      rgb.push_back(static_cast<std::uint8_t>(inks[at + colour] * inks[at + 3] / 255));
    }
  }
  return rgb;
}

// Returns whether the last call has only warned of bytes that do no harm.
bool only_warned(tjhandle jpeg) {
  return tjGetErrorCode(jpeg) == TJERR_WARNING && is_harmless(tjGetErrorStr2(jpeg));
}

struct JpegHeader {
  int width = 0;
  int height = 0;
  bool inks = false;   // four of them, in place of three colours
  bool stray = false;  // there are bytes that do no harm
};

Result<JpegHeader> read_header(tjhandle jpeg, std::string_view bytes) {
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  JpegHeader header;
  int subsampling = 0, colours = 0;
  header.stray = tjDecompressHeader3(jpeg, data, bytes.size(), &header.width, &header.height,
                                     &subsampling, &colours) != 0;
  if (header.stray && (header.width <= 0 || !only_warned(jpeg)))
    return broken(tjGetErrorStr2(jpeg));
  if (!fits(static_cast<std::size_t>(header.width), static_cast<std::size_t>(header.height)))
    return broken("an image of too many pixels");
  header.inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  return header;
}

Result<Image> decode_jpeg(std::string_view bytes, std::size_t least_side, bool cleaned = false) {
  const std::unique_ptr<void, DestroyJpeg> jpeg(tjInitDecompress());
  if (!jpeg) return broken(tjGetErrorStr2(nullptr));
  const auto header = read_header(jpeg.get(), bytes);
  if (!header) return header.error();
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  const bool inks = header->inks;
  const auto scale = smallest_scale(header->width, header->height, least_side);
  const int width = TJSCALED(header->width, scale), height = TJSCALED(header->height, scale);
  Image image{static_cast<std::size_t>(width), static_cast<std::size_t>(height), {}};
  image.pixels.resize(image.width * image.height * (inks ? 4 : kColours));
  const bool failed =
      tjDecompress2(jpeg.get(), data, bytes.size(), image.pixels.data(), width, 0, height,
                    inks ? TJPF_CMYK : TJPF_RGB,
                    // A small file may say so many passes over the image that they take minutes.
                    TJFLAG_LIMITSCANS) != 0;
  if (failed && !only_warned(jpeg.get())) return broken(tjGetErrorStr2(jpeg.get()));
  if ((header->stray || failed) && !cleaned) {
    const std::string clean = without_stray_bytes(bytes);
    if (clean.empty()) return broken("Premature end of JPEG file, behind stray bytes");
    return decode_jpeg(clean, least_side, true);
  }
  if (inks) image.pixels = to_rgb(image.pixels);
  return image;
}

struct FreePng {
  void operator()(png_image* image) const { png_image_free(image); }
};

Result<Image> decode_png(std::string_view bytes) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, FreePng> frees(&png);
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0)
    return broken(png.message);
  if (!fits(png.width, png.height)) return broken("an image of too many pixels");
  png.format = PNG_FORMAT_RGB;
  Image image{png.width, png.height, {}};
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  const png_color white{255, 255, 255};
  if (png_image_finish_read(&png, &white, image.pixels.data(), 0, nullptr) == 0)
    return broken(png.message);
  return image;
}

// The source of an output pixel along one axis: two neighbours, and the share of the second.
struct Step {
  std::size_t first = 0, second = 0;
  float share = 0;
};

std::vector<Step> steps(double begin, double extent, std::size_t length, std::size_t side,
                        bool backwards) {
  std::vector<Step> all(side);
  for (std::size_t i = 0; i < side; ++i) {
    const double place = (static_cast<double>(i) + 0.5) / static_cast<double>(side);
    const double exact =
        (begin + extent * (backwards ? 1 - place : place)) * static_cast<double>(length) - 0.5;
    const double at = std::clamp(exact, 0.0, static_cast<double>(length - 1));
    const auto first = static_cast<std::size_t>(at);
    all[i] = {first, std::min(first + 1, length - 1),
              static_cast<float>(at - static_cast<double>(first))};
  }
  return all;
}

Result<Image> try_decode_image(std::string_view bytes, std::size_t least_side) {
  if (bytes.starts_with("\xFF\xD8")) return decode_jpeg(bytes, least_side);
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes);
  return broken("neither a JPEG nor a PNG");
}

Result<Image> try_load_image(const std::filesystem::path& path, std::size_t least_side) {
  const auto bytes = read_file(path, kMaxImageBytes);
  if (!bytes) return bytes.error();
  auto image = try_decode_image(*bytes, least_side);
  if (!image) return broken_file(path, image.error().message());
  return image;
}

}  // namespace

Crop middle_square(const Image& image) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  const double side = std::min(width, height);
  return {.left = (width - side) / 2 / width,
          .top = (height - side) / 2 / height,
          .width = side / width,
          .height = side / height};
}

void write_pixels(const Image& image, const Crop& crop, std::size_t side, std::span<float> into) {
  constexpr std::array<float, kColours> kMean{0.485F, 0.456F, 0.406F};
  constexpr std::array<float, kColours> kDeviation{0.229F, 0.224F, 0.225F};
  const auto columns = steps(crop.left, crop.width, image.width, side, crop.mirrored);
  const auto rows = steps(crop.top, crop.height, image.height, side, false);
  const std::size_t stride = image.width * kColours;
  for (std::size_t y = 0; y < side; ++y) {
    const std::uint8_t* const above = image.pixels.data() + rows[y].first * stride;
    const std::uint8_t* const below = image.pixels.data() + rows[y].second * stride;
    for (std::size_t x = 0; x < side; ++x) {
      const Step& column = columns[x];
      for (std::size_t colour = 0; colour < kColours; ++colour) {
        const std::size_t left = column.first * kColours + colour;
        const std::size_t right = column.second * kColours + colour;
        const float top = static_cast<float>(above[left]) * (1 - column.share) +
                          static_cast<float>(above[right]) * column.share;
        const float bottom = static_cast<float>(below[left]) * (1 - column.share) +
                             static_cast<float>(below[right]) * column.share;
        const float value = (top * (1 - rows[y].share) + bottom * rows[y].share) / 255;
        into[(colour * side + y) * side + x] = (value - kMean[colour]) / kDeviation[colour];
      }
    }
  }
}

Image decode_image(std::string_view bytes, std::size_t least_side) {
  return value_or_throw(try_decode_image(bytes, least_side));
}

Image load_image(const std::filesystem::path& path, std::size_t least_side) {
  return value_or_throw(try_load_image(path, least_side));
}

}  // namespace ddprun::readers
