#include <ddprun/readers.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

constexpr std::size_t kSide = 32;
constexpr std::size_t kImageBytes = 3 * kSide * kSide;
constexpr std::size_t kRecordBytes = 1 + kImageBytes;
constexpr int kClasses = 10;
constexpr int kTrainFiles = 5;

Result<void> append_file(LabelledImages& images, const std::filesystem::path& path) {
  const auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  if (bytes->empty() || bytes->size() % kRecordBytes != 0) {
    return broken_file(
        path, fmt::format("{} bytes, expected records of {}", bytes->size(), kRecordBytes));
  }
  for (std::size_t at = 0; at < bytes->size(); at += kRecordBytes) {
    const auto label = static_cast<std::uint8_t>((*bytes)[at]);
    if (label >= kClasses) {
      return broken_file(path, fmt::format("image {}: label {}, expected 0 to {}",
                                           at / kRecordBytes, label, kClasses - 1));
    }
    images.labels.push_back(label);
    const auto* const first = bytes->data() + at + 1;
    images.pixels.insert(images.pixels.end(), first, first + kImageBytes);
  }
  return {};
}

Result<LabelledImages> try_read_cifar10(const std::filesystem::path& folder,
                                        const std::string& part) {
  LabelledImages images{.channels = 3, .side = kSide};
  if (part == "test") {
    if (auto read = append_file(images, folder / "test_batch.bin"); !read) return read.error();
    return images;
  }
  for (int number = 1; number <= kTrainFiles; ++number) {
    const auto path = folder / fmt::format("data_batch_{}.bin", number);
    if (auto read = append_file(images, path); !read) return read.error();
  }
  return images;
}

}  // namespace

LabelledImages read_cifar10(const std::filesystem::path& folder, const std::string& part) {
  return value_or_throw(try_read_cifar10(folder, part));
}

}  // namespace ddprun::readers
