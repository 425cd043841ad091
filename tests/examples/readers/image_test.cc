#include <ddprun/data_loader.h>
#include <ddprun/readers.h>
#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/examples/readers/tried.h"
#include "tests/examples/temporary_folder.h"

namespace ddprun::readers {
namespace {

using examples::TemporaryFolder;
using examples::write_bytes;

// Red grows to the right, green downwards.
std::vector<unsigned char> slope(int width, int height, int channels) {
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width * height * channels), 255);
  for (int at = 0; at < width * height; ++at) {
    auto* const pixel = pixels.data() + at * channels;
    pixel[0] = static_cast<unsigned char>(at % width * 255 / (width - 1));
    if (channels > 1) pixel[1] = static_cast<unsigned char>(at / width * 255 / (height - 1));
    if (channels > 1) pixel[2] = 0;
  }
  return pixels;
}

std::string jpeg_of(int width, int height, int format = TJPF_RGB, int flags = 0) {
  const auto pixels = slope(width, height, tjPixelSize[format]);
  tjhandle jpeg = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const int sampling = format == TJPF_GRAY ? TJSAMP_GRAY : TJSAMP_444;
  EXPECT_EQ(tjCompress2(jpeg, pixels.data(), width, 0, height, format, &bytes, &size, sampling, 100,
                        flags),
            0);
  std::string text(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(jpeg);
  return text;
}

std::string png_of(unsigned width, unsigned height, unsigned format = PNG_FORMAT_RGB) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width, image.height = height, image.format = format;
  const auto pixels = slope(static_cast<int>(width), static_cast<int>(height),
                            static_cast<int>(PNG_IMAGE_SAMPLE_CHANNELS(format)));
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr), 0);
  std::string text(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, text.data(), &size, 0, pixels.data(), 0, nullptr), 0);
  text.resize(size);
  return text;
}

std::string error_of(std::string_view bytes) {
  const auto image = tried([&] { return decode_image(bytes); });
  return image ? "no error" : image.error().message();
}

TEST(DecodeImage, ReadsJpegAndPng) {
  const auto expected = slope(40, 24, 3);
  for (const auto& [bytes, off] : {std::pair(jpeg_of(40, 24), 4), {png_of(40, 24), 0}}) {
    const auto image = tried([&] { return decode_image(bytes); });
    ASSERT_TRUE(image) << image.error().message();
    ASSERT_EQ(image->width, 40U);
    ASSERT_EQ(image->height, 24U);
    ASSERT_EQ(image->pixels.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(image->pixels[i], expected[i], off) << i;
  }
}

TEST(DecodeImage, MakesColoursOfGreyInksAndTransparency) {
  for (const auto& bytes : {jpeg_of(16, 16, TJPF_GRAY), png_of(16, 16, PNG_FORMAT_GRAY)}) {
    const auto grey = tried([&] { return decode_image(bytes); });
    ASSERT_TRUE(grey) << grey.error().message();
    ASSERT_EQ(grey->pixels.size(), 16U * 16 * 3);
    EXPECT_EQ(grey->pixels[45], grey->pixels[46]);
    EXPECT_NEAR(grey->pixels[45], 255, 2);
  }
  const auto inks = tried([&] { return decode_image(jpeg_of(16, 16, TJPF_CMYK)); });
  ASSERT_TRUE(inks) << inks.error().message();
  ASSERT_EQ(inks->pixels.size(), 16U * 16 * 3);
  EXPECT_NEAR(inks->pixels[0], 0, 4);  // no red ink inverted, all of black's inverse
  EXPECT_NEAR(inks->pixels[45], 255, 4);
  auto clear = tried([&] { return decode_image(png_of(4, 4, PNG_FORMAT_RGBA)); });
  ASSERT_TRUE(clear) << clear.error().message();
  EXPECT_EQ(clear->pixels.size(), 4U * 4 * 3);
}

TEST(DecodeImage, ComesOutSmallerWhereThatIsEnough) {
  const std::string bytes = jpeg_of(160, 120);
  for (const auto& [least, height] : {std::pair(0U, 120U),
                                      {120U, 120U},
                                      {61U, 120U},
                                      {60U, 60U},
                                      {31U, 60U},
                                      {30U, 30U},
                                      {10U, 15U},
                                      {1U, 15U}}) {
    EXPECT_EQ(tried([&] { return decode_image(bytes, least); })->height, height) << least;
  }
}

TEST(DecodeImage, RefusesWhatIsDamaged) {
  EXPECT_EQ(error_of("GIF89a"), "neither a JPEG nor a PNG");
  EXPECT_EQ(error_of(""), "neither a JPEG nor a PNG");
  for (const std::string& whole : {jpeg_of(64, 64), png_of(64, 64)}) {
    for (std::size_t length = 4; length + 13 < whole.size(); length += whole.size() / 40 + 1)
      EXPECT_NE(error_of(std::string_view(whole).substr(0, length)), "no error") << length;
  }
}

TEST(DecodeImage, StrayBytesBetweenMarkersHideNoMissingEnd) {
  const std::string whole = jpeg_of(64, 64);
  std::string stray = whole;
  const std::size_t second = 4 + static_cast<unsigned char>(whole[4]) * std::size_t{256} +
                             static_cast<unsigned char>(whole[5]);
  stray.insert(second, "stray");
  const auto image = tried([&] { return decode_image(stray); });
  ASSERT_TRUE(image) << image.error().message();
  EXPECT_EQ(image->pixels, tried([&] { return decode_image(whole); })->pixels);
  const std::string cut = stray.substr(0, stray.size() * 2 / 3);
  EXPECT_NE(error_of(cut), "no error");
  EXPECT_NE(error_of(cut + "\xFF\xD9"), "no error");  // an end marker where data is missing
}

// Each scan is a pass over the whole image, and takes some bytes: a small file could take minutes.
TEST(DecodeImage, RefusesAJpegOfThousandsOfScans) {
  const std::string whole = jpeg_of(64, 64, TJPF_RGB, TJFLAG_PROGRESSIVE);
  const std::size_t last = whole.rfind("\xFF\xDA");
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(error_of(whole), "no error");
  const std::string scan = whole.substr(last, whole.size() - 2 - last);
  std::string many = whole.substr(0, last);
  for (int scans = 0; scans < 2000; ++scans) many += scan;
  EXPECT_NE(error_of(many + "\xFF\xD9").find("500 scans"), std::string::npos)
      << error_of(many + "\xFF\xD9");
}

TEST(WritePixels, InterpolatesCropsAndMirrors) {
  const auto image = tried([&] { return decode_image(png_of(64, 64)); });
  constexpr std::size_t kSide = 8;
  std::vector<float> pixels(3 * kSide * kSide);
  const auto red = [&](std::size_t x) { return pixels[x] * 0.229F + 0.485F; };
  write_pixels(*image, {}, kSide, pixels);
  for (std::size_t x = 0; x < kSide; ++x)
    EXPECT_NEAR(red(x), (static_cast<double>(x) + 0.5) / 8 * 64 / 63 - 0.5 / 63, 0.01) << x;
  EXPECT_NEAR(pixels[2 * kSide * kSide] * 0.225F + 0.406F, 0, 1e-6);
  write_pixels(*image, {.mirrored = true}, kSide, pixels);
  EXPECT_GT(red(0), red(7));
  write_pixels(*image, {.left = 0.5, .width = 0.5, .height = 0.5}, kSide, pixels);
  EXPECT_NEAR(red(0), 0.53, 0.02);
  const Crop middle = middle_square({.width = 200, .height = 100, .pixels = {}});
  EXPECT_EQ(middle.left, 0.25);
  EXPECT_EQ(middle.width, 0.5);
  EXPECT_EQ(middle.height, 1);
}

TEST(ImageFolder, ListsByClassFolderAndName) {
  const TemporaryFolder folder;
  for (const char* name :
       {"cat/b.JPG", "cat/a.png", "cat/deep/0.jpeg", "cat/note.txt", "ant/z.jpg"}) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    write_bytes(folder.path() / name, "");
  }
  const auto listed = tried([&] { return list_image_folder(folder.path()); });
  ASSERT_TRUE(listed) << listed.error().message();
  EXPECT_EQ(listed->classes, (std::vector<std::string>{"ant", "cat"}));
  std::vector<std::string> names;
  for (const auto& file : listed->files)
    names.push_back(std::to_string(file.label) + " " +
                    file.path.lexically_relative(folder.path()).string());
  EXPECT_EQ(names, (std::vector<std::string>{"0 ant/z.jpg", "1 cat/a.png", "1 cat/b.JPG",
                                             "1 cat/deep/0.jpeg"}));
  std::filesystem::create_directory(folder.path() / "dog");
  EXPECT_EQ(tried([&] { return list_image_folder(folder.path()); }).error().message(),
            "read " + (folder.path() / "dog").string() + ": no images (.jpg, .jpeg, .png)");
  EXPECT_EQ(tried([&] { return list_image_folder(folder.path() / "none"); }).error().message(),
            "read " + (folder.path() / "none").string() + ": No such file or directory");
}

// Each sample is the image in its file, cut and scaled.
class PixelDataset {
 public:
  explicit PixelDataset(ImageFolder folder) : folder_(std::move(folder)) {}

  std::vector<float> batch(const BatchRequest& request) const {
    constexpr std::size_t kSide = 16;
    constexpr std::size_t kPixels = 3 * kSide * kSide;
    std::vector<float> pixels(request.indices.size() * kPixels);
    for (std::size_t i = 0; i < request.indices.size(); ++i) {
      const auto image =
          tried([&] { return load_image(folder_.files[request.indices[i]].path, kSide); }).value();
      write_pixels(image, middle_square(image), kSide,
                   std::span(pixels).subspan(i * kPixels, kPixels));
    }
    return pixels;
  }

 private:
  ImageFolder folder_;
};

TEST(LoadImage, InManyThreadsGivesTheSamePixelsAndNamesTheCorruptFile) {
  const TemporaryFolder folder;
  constexpr std::size_t kFiles = 40;
  const auto path_of = [&folder](std::size_t number) {
    return folder.path() / "class" /
           (std::to_string(100 + number) + (number % 2 == 0 ? ".jpg" : ".png"));
  };
  std::filesystem::create_directory(folder.path() / "class");
  for (std::size_t i = 0; i < kFiles; ++i) {
    const int side = 32 + static_cast<int>(i);
    write_bytes(path_of(i), i % 2 == 0 ? jpeg_of(side, 48) : png_of(side, 48));
  }
  const PixelDataset dataset(tried([&] { return list_image_folder(folder.path()); }).value());
  const DistributedSampler sampler(kFiles, 1, 0, {.shuffle = false});
  std::vector<std::vector<float>> alone;
  BatchLoader in_the_loop(dataset, sampler, 3, {.workers = 0});
  for (const auto& batch : in_the_loop) alone.push_back(batch);
  BatchLoader loader(dataset, sampler, 3, {.workers = 4});
  std::size_t given = 0;
  for (const auto& batch : loader) EXPECT_EQ(batch, alone.at(given++));
  EXPECT_EQ(given, alone.size());

  write_bytes(path_of(21), "no image");
  given = 0;
  std::string error;
  try {
    for (const auto& batch : loader) EXPECT_EQ(batch, alone.at(given++));
  } catch (const std::runtime_error& thrown) {
    error = thrown.what();
  }
  EXPECT_EQ(error, "read " + path_of(21).string() + ": neither a JPEG nor a PNG");
  EXPECT_EQ(given, 7U);
}

TEST(LoadImage, NamesTheCorruptFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "half.jpg";
  const std::string whole = jpeg_of(64, 64);
  write_bytes(path, whole.substr(0, whole.size() / 2));
  EXPECT_EQ(tried([&] { return load_image(path); }).error().message(),
            "read " + path.string() + ": Premature end of JPEG file");
}

}  // namespace
}  // namespace ddprun::readers
