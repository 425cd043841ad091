#include <ddprun/value.h>
#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/zip_file.h"
#include "worker/checkpoint/zip_format.h"

namespace ddprun::worker {
namespace {

// While these are hot in the cache they are read and summed.
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{256} << 20;

// The place of the file's directory.
struct End {
  std::uint64_t entries = 0;
  std::uint64_t directory_bytes = 0;
  std::uint64_t directory_offset = 0;
};

Result<End> read_end64(const ByteSource& source, std::uint64_t end_offset) {
  std::array<std::byte, zip::kLocator64Bytes> locator{};
  std::array<std::byte, zip::kEnd64Bytes> end{};
  if (end_offset < locator.size() + end.size()) return refused("no zip64 end record");
  if (auto read = source.read(end_offset - locator.size(), locator); !read) return read.error();
  if (zip::get<std::uint32_t>(locator, 0) != zip::kLocator64Signature) {
    return refused("no zip64 end record");
  }
  const auto at = zip::get<std::uint64_t>(locator, 8);
  if (at != end_offset - locator.size() - end.size()) {
    return refused("the zip64 end record is not where its locator says");
  }
  if (auto read = source.read(at, end); !read) return read.error();
  if (zip::get<std::uint32_t>(end, 0) != zip::kEnd64Signature) {
    return refused("no zip64 end record");
  }
  return End{zip::get<std::uint64_t>(end, 32), zip::get<std::uint64_t>(end, 40),
             zip::get<std::uint64_t>(end, 48)};
}

// Names the format of a file that is no zip file, and how it becomes one. Empty if it has no known
// one.
std::string other_format(const ByteSource& source) {
  constexpr std::array kOldTorch{std::byte{0x80}, std::byte{2}, std::byte{0x8A}, std::byte{10}};
  std::array<std::byte, 9> begin{};
  if (source.size() < begin.size() || !source.read(0, begin)) return {};
  if (std::ranges::equal(std::span(begin).first(kOldTorch.size()), kOldTorch))
    return "; it is in torch.save's format of before 2020: save it again, in Python, by "
           "torch.save(torch.load(old), new)";
  // The size of a JSON header, and its begin.
  if (zip::get<std::uint64_t>(begin, 0) < source.size() && begin[8] == std::byte{'{'})
    return "; it is a safetensors file: save it again, in Python, by "
           "torch.save(safetensors.torch.load_file(old), new)";
  return {};
}

// torch.save writes no comment, so the end record is at the very end. It always writes zip64
// records, which count wherever they are.
Result<End> read_end(const ByteSource& source) {
  std::array<std::byte, zip::kEndBytes> end{};
  if (source.size() < end.size()) return refused("no zip file: it is too short");
  const std::uint64_t at = source.size() - end.size();
  if (auto read = source.read(at, end); !read) return read.error();
  if (zip::get<std::uint32_t>(end, 0) != zip::kEndSignature ||
      zip::get<std::uint16_t>(end, 20) != 0) {
    return refused("no zip file, or it is cut short: no end record is at its end" +
                   other_format(source));
  }
  End found{zip::get<std::uint16_t>(end, 10), zip::get<std::uint32_t>(end, 12),
            zip::get<std::uint32_t>(end, 16)};
  const bool in64 = found.entries == zip::kIn64Short || found.directory_bytes == zip::kIn64 ||
                    found.directory_offset == zip::kIn64;
  if (in64) {
    const auto end64 = read_end64(source, at);
    if (!end64) return end64.error();
    found = *end64;
  }
  if (found.entries > kMaxZipEntries) {
    return Error(ErrorCode::kLimit,
                 fmt::format("{} entries, at most {} are read", found.entries, kMaxZipEntries));
  }
  if (found.directory_offset > at || found.directory_bytes > at - found.directory_offset ||
      found.directory_bytes > kMaxDirectoryBytes ||
      found.directory_bytes < found.entries * zip::kCentralBytes) {
    return refused("the directory does not lie in the file");
  }
  return found;
}

// An entry as the directory has it.
struct DirectoryEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header_offset = 0;
  std::uint32_t crc = 0;
};

// The fields that are too small for their value, in the order of the record.
Result<void> read_zip64(std::span<const std::byte> extra, std::uint64_t& stored,
                        DirectoryEntry& entry) {
  while (extra.size() >= 4) {
    const auto tag = zip::get<std::uint16_t>(extra, 0);
    const auto length = zip::get<std::uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (length > extra.size()) break;
    auto field = extra.first(length);
    extra = extra.subspan(length);
    if (tag != zip::kZip64Tag) continue;
    for (std::uint64_t* number : {&entry.bytes, &stored, &entry.header_offset}) {
      if (*number != zip::kIn64 || field.size() < 8) continue;
      *number = zip::get<std::uint64_t>(field, 0);
      field = field.subspan(8);
    }
  }
  return {};
}

// Takes the first record off the directory.
Result<DirectoryEntry> take_listed(std::span<const std::byte>& directory) {
  if (directory.size() < zip::kCentralBytes ||
      zip::get<std::uint32_t>(directory, 0) != zip::kCentralSignature) {
    return refused("the directory is damaged");
  }
  const auto flags = zip::get<std::uint16_t>(directory, 8);
  const auto method = zip::get<std::uint16_t>(directory, 10);
  std::uint64_t stored = zip::get<std::uint32_t>(directory, 20);
  DirectoryEntry entry{{},
                       zip::get<std::uint32_t>(directory, 24),
                       zip::get<std::uint32_t>(directory, 42),
                       zip::get<std::uint32_t>(directory, 16)};
  const std::size_t name = zip::get<std::uint16_t>(directory, 28);
  const std::size_t extra = zip::get<std::uint16_t>(directory, 30);
  const std::size_t comment = zip::get<std::uint16_t>(directory, 32);
  const auto rest = directory.subspan(zip::kCentralBytes);
  if (name + extra + comment > rest.size()) return refused("the directory is damaged");
  entry.name.assign(reinterpret_cast<const char*>(rest.data()), name);
  directory = rest.subspan(name + extra + comment);
  const std::string shown = printable(entry.name);
  if (name == 0 || name > kMaxZipNameBytes) {
    return refused(
        fmt::format("an entry's name has {} bytes, expected 1 to {}", name, kMaxZipNameBytes));
  }
  if (auto read = read_zip64(rest.subspan(name, extra), stored, entry); !read) return read.error();
  if ((flags & zip::kEncrypted) != 0) return refused(fmt::format("entry '{}' is encrypted", shown));
  if (method != zip::kStored || stored != entry.bytes) {
    return refused(fmt::format("entry '{}' is compressed (method {}): only stored entries are read",
                               shown, method));
  }
  return entry;
}

// Finds the entry's bytes: its own header has a name and fields of other lengths than the
// directory.
Result<ZipEntry> locate(const ByteSource& source, const DirectoryEntry& listed, std::uint64_t end) {
  std::array<std::byte, zip::kLocalBytes> header{};
  const std::string shown = printable(listed.name);
  if (listed.header_offset > end || end - listed.header_offset < header.size()) {
    return refused(fmt::format("entry '{}' does not lie in the file", shown));
  }
  if (auto read = source.read(listed.header_offset, header); !read) return read.error();
  const std::size_t name = zip::get<std::uint16_t>(header, 26);
  const std::size_t extra = zip::get<std::uint16_t>(header, 28);
  if (zip::get<std::uint32_t>(header, 0) != zip::kLocalSignature || name != listed.name.size()) {
    return refused(fmt::format("entry '{}' has no header of its own", shown));
  }
  const std::uint64_t start = listed.header_offset + header.size() + name + extra;
  if (start > end || listed.bytes > end - start) {
    return refused(
        fmt::format("entry '{}' has {} bytes, which do not lie in the file", shown, listed.bytes));
  }
  std::string own(name, '\0');
  const auto name_bytes = std::as_writable_bytes(std::span(own));
  if (auto read = source.read(listed.header_offset + header.size(), name_bytes); !read) {
    return read.error();
  }
  if (own != listed.name) {
    return refused(
        fmt::format("entry '{}' has another name in its header: '{}'", shown, printable(own)));
  }
  return ZipEntry{listed.name, start, listed.bytes, listed.crc};
}

// One byte of two entries would count twice, however small the file is.
Result<void> check_overlaps(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) {
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return refused("entries overlap");
  }
  return {};
}

}  // namespace

Result<ZipReader> ZipReader::open(std::shared_ptr<const ByteSource> source) {
  ZipReader reader(std::move(source));
  const ByteSource& file = *reader.source_;
  const auto end = read_end(file);
  if (!end) return end.error();
  std::vector<std::byte> directory(end->directory_bytes);
  if (auto read = file.read(end->directory_offset, directory); !read) return read.error();
  std::span<const std::byte> rest(directory);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::uint64_t i = 0; i < end->entries; ++i) {
    const auto listed = take_listed(rest);
    if (!listed) return listed.error();
    auto entry = locate(file, *listed, end->directory_offset);
    if (!entry) return entry.error();
    if (!reader.by_name_.try_emplace(entry->name, reader.entries_.size()).second) {
      return refused(fmt::format("two entries are named '{}'", printable(entry->name)));
    }
    ranges.emplace_back(listed->header_offset, entry->offset + entry->bytes);
    reader.entries_.push_back(std::move(*entry));
  }
  if (!rest.empty()) return refused("the directory has more entries than it says");
  if (auto checked = check_overlaps(std::move(ranges)); !checked) return checked.error();
  return reader;
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

Result<void> ZipReader::read(const ZipEntry& entry, std::span<std::byte> into) const {
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < into.size();) {
    const auto part = into.subspan(done, std::min(kReadBytes, into.size() - done));
    if (auto read = source_->read(entry.offset + done, part); !read) return read;
    crc = libdeflate_crc32(crc, part.data(), part.size());
    done += part.size();
  }
  if (crc == entry.crc) return {};
  return refused(fmt::format("entry '{}' is damaged: its CRC is {:08x}, expected {:08x}",
                             printable(entry.name), crc, entry.crc));
}

}  // namespace ddprun::worker
