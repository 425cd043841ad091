#include <ddprun/readers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/examples/readers/tried.h"
#include "tests/examples/temporary_folder.h"

namespace ddprun::readers {
namespace {

using examples::read_bytes;
using examples::TemporaryFolder;
using examples::write_bytes;

constexpr std::size_t kDigitPixels = 28 * 28;

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFFU);
  return bytes;
}

std::string images_file(std::uint32_t count, std::uint32_t side = 28) {
  return big_endian(0x803) + big_endian(count) + big_endian(side) + big_endian(side) +
         std::string(std::size_t{count} * side * side, '\x7F');
}

std::string labels_file(const std::string& labels) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

class Idx : public testing::Test {
 protected:
  std::filesystem::path images() const { return folder_.path() / "train-images-idx3-ubyte"; }
  std::filesystem::path labels() const { return folder_.path() / "train-labels-idx1-ubyte"; }

  // A sound set of three digits, plain; tests then damage one file of it.
  void SetUp() override {
    write_bytes(images(), images_file(3));
    write_bytes(labels(), labels_file({7, 0, 9}));
  }

  Result<LabelledImages> read() const {
    return tried([&] { return read_idx(folder_.path(), "train"); });
  }

  // The message after "read <path>: ".
  std::string error_about(const std::filesystem::path& path) const {
    const auto digits = read();
    if (digits) return "no error";
    const std::string prefix = "read " + path.string() + ": ";
    const std::string message = digits.error().message();
    return message.starts_with(prefix) ? message.substr(prefix.size())
                                       : "about another file: " + message;
  }

  TemporaryFolder folder_;
};

TEST_F(Idx, ReadsPlainFiles) {
  const auto digits = read();
  ASSERT_TRUE(digits) << digits.error().message();
  EXPECT_EQ(digits->count(), 3U);
  EXPECT_EQ(digits->labels, (std::vector<std::uint8_t>{7, 0, 9}));
  EXPECT_EQ(digits->pixels, std::vector<std::uint8_t>(3 * kDigitPixels, 0x7F));
}

TEST_F(Idx, PrefersGzippedFiles) {
  write_gzip(images().string() + ".gz", images_file(2));
  write_gzip(labels().string() + ".gz", labels_file({1, 2}));
  const auto digits = read();
  ASSERT_TRUE(digits) << digits.error().message();
  EXPECT_EQ(digits->labels, (std::vector<std::uint8_t>{1, 2}));
}

TEST_F(Idx, ReadsTheDigitsOfTheProject) {
  const auto train = tried([&] { return read_idx(DDPRUN_EXAMPLES_DATA "/mnist_5k", "train"); });
  const auto held_out = tried([&] { return read_idx(DDPRUN_EXAMPLES_DATA "/mnist_5k", "t10k"); });
  ASSERT_TRUE(train) << train.error().message();
  ASSERT_TRUE(held_out) << held_out.error().message();
  for (std::uint8_t digit = 0; digit < 10; ++digit) {
    EXPECT_EQ(std::ranges::count(train->labels, digit), 400);
    EXPECT_EQ(std::ranges::count(held_out->labels, digit), 100);
  }
  EXPECT_EQ(*std::ranges::max_element(train->pixels), 255);
}

TEST_F(Idx, NamesAMissingFile) {
  std::filesystem::remove(labels());
  EXPECT_EQ(error_about(labels().string() + ".gz"), "No such file or directory");
}

TEST_F(Idx, RefusesAWrongMagicNumber) {
  write_bytes(images(), labels_file("123"));
  EXPECT_EQ(error_about(images()), "magic number 0x00000801, expected 0x00000803");
}

TEST_F(Idx, RefusesWhatIsNeitherIdxNorGzip) {
  write_bytes(images().string() + ".gz", "<html>moved</html>");
  EXPECT_EQ(error_about(images().string() + ".gz"), "magic number 0x3c68746d, expected 0x00000803");
}

TEST_F(Idx, RefusesAFileCutShortAnywhere) {
  const std::string whole = images_file(3);
  for (const std::size_t length : {0U, 3U, 4U, 15U, 16U, 1000U}) {
    write_bytes(images(), whole.substr(0, length));
    EXPECT_NE(error_about(images()).find("cut short"), std::string::npos) << length;
  }
}

// 16 bytes that say 784 MB take no such memory.
TEST_F(Idx, TakesMemoryAsTheBytesCome) {
  const auto highest_mib = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss / 1024;
  };
  std::string header = images_file(3).substr(0, 16);
  header.replace(4, 4, std::string("\x00\x0F\x42\x40", 4));
  write_bytes(images(), header);
  const auto before = highest_mib();
  EXPECT_EQ(error_about(images()), "cut short, 784000000 bytes are missing");
  EXPECT_LT(highest_mib() - before, 200);
}

TEST_F(Idx, RefusesAGzipStreamCutShortAnywhere) {
  const std::string packed = images().string() + ".gz";
  write_gzip(packed, images_file(3));
  const std::string whole = read_bytes(packed);
  for (std::size_t length = 1; length < whole.size(); ++length) {
    write_bytes(packed, whole.substr(0, length));
    EXPECT_FALSE(read()) << length << " of " << whole.size() << " bytes";
  }
}

TEST_F(Idx, RefusesAGzipStreamWithAFlippedByte) {
  const std::string packed = images().string() + ".gz";
  write_gzip(packed, images_file(3));
  std::string damaged = read_bytes(packed);
  damaged[damaged.size() - 6] ^= 1;  // in the checksum of the data
  write_bytes(packed, damaged);
  EXPECT_EQ(error_about(packed), "incorrect data check");
}

TEST_F(Idx, RefusesBytesBehindTheLastItem) {
  write_bytes(labels(), labels_file("\1\2\3") + "x");
  EXPECT_EQ(error_about(labels()), "longer than its header says");
}

TEST_F(Idx, RefusesUnequalCounts) {
  write_bytes(labels(), labels_file("\1\2"));
  EXPECT_EQ(error_about(labels()), "2 labels for 3 images");
}

TEST_F(Idx, RefusesImagesOfAnotherSize) {
  write_bytes(images(), images_file(3, 32));
  EXPECT_EQ(error_about(images()), "images of side 32, expected 28");
}

TEST_F(Idx, RefusesALabelThatIsNoDigit) {
  write_bytes(labels(), labels_file("\1\12\3"));
  EXPECT_EQ(error_about(labels()), "label 10, expected 0 to 9");
}

TEST_F(Idx, RefusesAnEmptySet) {
  write_bytes(images(), images_file(0));
  write_bytes(labels(), labels_file(""));
  EXPECT_EQ(error_about(images()), "no images");
}

TEST_F(Idx, AllocatesNothingForACountBeyondTheLimit) {
  write_bytes(images(),
              big_endian(0x803) + big_endian(0xFFFFFFFF) + big_endian(28) + big_endian(28));
  EXPECT_EQ(error_about(images()), "4294967295 items, at most 1000000 are read");
  write_bytes(images(),
              big_endian(0x803) + big_endian(kMaxImages + 1) + big_endian(28) + big_endian(28));
  EXPECT_EQ(error_about(images()), "1000001 items, at most 1000000 are read");
}

TEST_F(Idx, RefusesAFolderInPlaceOfAFile) {
  std::filesystem::remove(images());
  std::filesystem::create_directory(images());
  EXPECT_EQ(error_about(images()), "Is a directory");
}

}  // namespace
}  // namespace ddprun::readers
