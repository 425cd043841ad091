#include <ddprun/readers.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

// 0x08: unsigned bytes. Then the number of dimensions: 3 for images, 1 for labels.
constexpr std::uint32_t kImagesMagic = 0x00000803;
constexpr std::uint32_t kLabelsMagic = 0x00000801;

// gzclose_r, for files opened for reading: plain gzclose would link the compressor too (zlib.h).
struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

// One open IDX file. We know the length of every read beforehand, so that "cut short" can be told
// from the end. zlib passes plain files through as they are.
class IdxFile {
 public:
  static Result<IdxFile> open(const std::filesystem::path& path) {
    // gzopen leaves errno alone if it fails for want of memory (zlib.h).
    errno = 0;
    GzipFile file(gzopen(path.c_str(), "rbe"));
    if (file) return IdxFile(path, std::move(file));
    return Error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kSystem,
                 fmt::format("read {}: {}", path.string(), std::generic_category().message(errno)));
  }

  // The memory grows as the bytes come: a header of a few bytes may say any length.
  Result<std::vector<std::uint8_t>> read(std::size_t length) {
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < length) {
      const std::size_t done = bytes.size();
      bytes.resize(done + std::min(length - done, kGrowthBytes));
      if (auto filled = read(std::span(bytes).subspan(done), length - bytes.size()); !filled)
        return filled.error();
    }
    return bytes;
  }

  // `behind`: how many bytes are to come after these.
  Result<void> read(std::span<std::uint8_t> into, std::size_t behind = 0) {
    for (std::size_t done = 0; done < into.size();) {
      const auto want = static_cast<unsigned>(std::min(into.size() - done, kChunkBytes));
      const int got = gzread(file_.get(), into.data() + done, want);
      if (got < 0) return broken_file(path_, reason());
      if (got == 0)
        return broken_file(
            path_, fmt::format("cut short, {} bytes are missing", into.size() - done + behind));
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

  Result<std::uint32_t> read_number() {
    std::array<std::uint8_t, 4> bytes{};
    if (auto filled = read(bytes); !filled) return filled.error();
    std::uint32_t number = 0;
    for (const std::uint8_t byte : bytes) number = number << 8U | byte;
    return number;
  }

  // Reads past the data, so that zlib also checks the checksum that gzip keeps there. If that is
  // missing, gzread returns 0 as at a sound end; only gzerror tells the difference.
  Result<void> expect_end() {
    std::uint8_t extra = 0;
    if (gzread(file_.get(), &extra, 1) > 0)
      return broken_file(path_, "longer than its header says");
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) return broken_file(path_, reason());
    return {};
  }

  // The number of items. Checks the magic number first and, for images, the two other dimensions.
  Result<std::size_t> read_header(std::uint32_t magic, std::size_t expected_side) {
    auto found = read_number();
    if (!found) return found.error();
    if (*found != magic) {
      return broken_file(path_,
                         fmt::format("magic number {:#010x}, expected {:#010x}", *found, magic));
    }
    auto count = read_number();
    if (!count) return count.error();
    if (*count > kMaxImages)
      return broken_file(path_, fmt::format("{} items, at most {} are read", *count, kMaxImages));
    for (std::uint32_t dimension = 1; dimension < (magic & 0xFFU); ++dimension) {
      auto side = read_number();
      if (!side) return side.error();
      if (*side != expected_side)
        return broken_file(path_,
                           fmt::format("images of side {}, expected {}", *side, expected_side));
    }
    return *count;
  }

 private:
  // gzread takes 32-bit lengths and returns an int: a large file goes in pieces.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  static constexpr std::size_t kGrowthBytes = std::size_t{1} << 24;

  IdxFile(std::filesystem::path path, GzipFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  // zlib's words for its last error ("path: incorrect data check"), without the path, which our
  // message has already. Z_ERRNO: the words are the system's.
  std::string reason() const {
    int code = Z_OK;
    const std::string text = gzerror(file_.get(), &code);
    if (code == Z_BUF_ERROR) return "cut short, the gzip stream has no end";
    if (code == Z_ERRNO) return std::generic_category().message(errno);
    const std::size_t colon = text.rfind(": ");
    return colon == std::string::npos ? text : text.substr(colon + 2);
  }

  std::filesystem::path path_;
  GzipFile file_;
};

// All bytes of the items in `<stem>.gz` or, if there is none, in `<stem>`. If neither is there the
// error names the first, which is how the sets are distributed. Labels have side 1.
Result<std::vector<std::uint8_t>> read_items(const std::filesystem::path& stem, std::uint32_t magic,
                                             std::size_t side) {
  std::filesystem::path packed = stem;
  packed += ".gz";
  auto file = IdxFile::open(packed);
  if (!file && file.error().code() == ErrorCode::kNotFound && std::filesystem::exists(stem))
    file = IdxFile::open(stem);
  if (!file) return file.error();
  const auto count = file->read_header(magic, side);
  if (!count) return count.error();
  auto items = file->read(*count * side * side);
  if (!items) return items.error();
  if (auto end = file->expect_end(); !end) return end.error();
  return items;
}

Result<LabelledImages> try_read_idx(const std::filesystem::path& folder, const std::string& part,
                                    const IdxOptions& options) {
  const auto images = folder / (part + "-images-idx3-ubyte");
  const auto labels = folder / (part + "-labels-idx1-ubyte");
  auto pixels = read_items(images, kImagesMagic, options.side);
  if (!pixels) return pixels.error();
  auto values = read_items(labels, kLabelsMagic, 1);
  if (!values) return values.error();
  const std::size_t count = pixels->size() / (options.side * options.side);
  if (count != values->size())
    return broken_file(labels, fmt::format("{} labels for {} images", values->size(), count));
  if (values->empty()) return broken_file(images, "no images");
  const auto highest = *std::max_element(values->begin(), values->end());
  if (highest >= options.classes)
    return broken_file(labels,
                       fmt::format("label {}, expected 0 to {}", highest, options.classes - 1));
  return LabelledImages{
      .side = options.side, .pixels = std::move(*pixels), .labels = std::move(*values)};
}

}  // namespace

LabelledImages read_idx(const std::filesystem::path& folder, const std::string& part,
                        const IdxOptions& options) {
  return value_or_throw(try_read_idx(folder, part, options));
}

}  // namespace ddprun::readers
