// Checkpoints that are only in memory, for tests. They are bytes that can be read anywhere, zip
// files of given entries, and pickles written by hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/storage.h"
#include "worker/checkpoint/zip_file.h"

namespace ddprun::worker {

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}

  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) {
      return Error(ErrorCode::kSystem, "past the end");
    }
    std::ranges::copy(std::as_bytes(std::span(bytes_)).subspan(offset, into.size()), into.begin());
    return {};
  }

 private:
  std::string bytes_;
};

class MemoryBytes : public StorageBytes {
 public:
  explicit MemoryBytes(std::string bytes) : bytes_(std::move(bytes)) {}

  std::size_t size() const override { return bytes_.size(); }
  Result<void> read(std::span<std::byte> into) const override {
    std::ranges::copy(memory(), into.begin());
    return {};
  }
  std::span<const std::byte> memory() const override { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

inline ByteSink sink_to(std::string& bytes) {
  return [&bytes](std::span<const std::byte> more) -> Result<void> {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return {};
  };
}

using Entries = std::vector<std::pair<std::string, std::string>>;

inline std::string zip_of(const Entries& entries) {
  std::string bytes;
  ZipWriter zip(sink_to(bytes));
  for (const auto& [name, text] : entries) zip.add(name, std::as_bytes(std::span(text))).value();
  zip.finish().value();
  return bytes;
}

// A file with this pickle, and one storage "0" of 16 bytes.
inline std::string file_of(std::string_view pickle) {
  return zip_of({{"a/data.pkl", std::string(pickle)},
                 {"a/byteorder", "little"},
                 {"a/data/0", std::string(16, '\1')},
                 {"a/version", "3\n"}});
}

inline Result<CheckpointFile> read_bytes(std::string bytes) {
  return read_checkpoint(std::make_shared<MemorySource>(std::move(bytes)));
}

inline std::string error_of(std::string bytes) {
  const auto read = read_bytes(std::move(bytes));
  return read ? "no error" : read.error().message();
}

}  // namespace ddprun::worker
