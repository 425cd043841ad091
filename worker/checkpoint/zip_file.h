// The container of a checkpoint: a zip file of stored entries, as torch.save writes it and
// torch.load reads it. See PKWARE's APPNOTE.TXT 6.3, and caffe2/serialize/inline_container.cc of
// PyTorch 2.11. An entry's bytes begin at a multiple of 64, so that they can be mapped into memory.
// Files, entries and offsets above 4 GiB are allowed (zip64). Compressed and encrypted entries are
// refused, so no file can become larger than it is on disk. Reads through a ByteSource and writes
// to a ByteSink: it opens nothing. One thread at a time for the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

// Bytes that can be read anywhere.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  ByteSource(ByteSource&&) = delete;
  ByteSource& operator=(ByteSource&&) = delete;
  virtual ~ByteSource() = default;

  virtual std::uint64_t size() const = 0;
  // Fills `into` from `offset` on; fails where there are fewer bytes.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) const = 0;
};

// Takes the next bytes of a file.
using ByteSink = std::function<Result<void>(std::span<const std::byte>)>;

inline constexpr std::size_t kZipAlignBytes = 64;
// A model has a storage for each of its tensors, and some hundred thousand tensors at most.
inline constexpr std::size_t kMaxZipEntries = 1'000'000;
inline constexpr std::size_t kMaxZipNameBytes = 1024;

struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0;  // of its bytes in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};

class ZipReader {
 public:
  // Looks at the directory of the file, and at the header of each entry. Refuses a file whose
  // entries overlap, lie outside of it, share a name, or are not stored.
  static Result<ZipReader> open(std::shared_ptr<const ByteSource> source);

  // In the order of the directory.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;  // null: not there

  // Fills `into`, which must have entry.bytes bytes, and compares its CRC.
  Result<void> read(const ZipEntry& entry, std::span<std::byte> into) const;

 private:
  explicit ZipReader(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}

  std::shared_ptr<const ByteSource> source_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

class ZipWriter {
 public:
  explicit ZipWriter(ByteSink sink) : sink_(std::move(sink)) {}

  // Appends an entry. Its name must be new: nobody looks.
  Result<void> add(std::string_view name, std::span<const std::byte> bytes);
  // Appends the directory. Call it once, at the end.
  Result<void> finish();

 private:
  struct EntryRecord {
    std::string name;
    std::uint64_t header_offset;
    std::uint64_t bytes;
    std::uint32_t crc;
  };

  Result<void> put(std::string_view bytes);
  Result<std::uint32_t> put_bytes(std::span<const std::byte> bytes);

  ByteSink sink_;
  std::uint64_t offset_ = 0;
  std::vector<EntryRecord> written_;
};

}  // namespace ddprun::worker
