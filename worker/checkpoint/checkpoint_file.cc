#include "worker/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "worker/checkpoint/atomic_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

constexpr std::string_view kFolder = "archive";
constexpr std::string_view kPickleName = "data.pkl";
constexpr std::string_view kSaveIdName = "save_id";
constexpr std::size_t kMaxSaveIdBytes = 64;
constexpr std::string_view kVersion = "3\n";  // torch.save's, since 2020

// The numbers of the 64-bit FNV-1a hash.
constexpr std::uint64_t kFnvBasis = 0xCBF29CE484222325U;
constexpr std::uint64_t kFnvPrime = 0x100000001B3U;

class OpenFile : public ByteSource {
 public:
  OpenFile(int fd, std::uint64_t size) : fd_(fd), size_(size) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() override { ::close(fd_); }

  std::uint64_t size() const override { return size_; }

  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error(ErrorCode::kSystem, std::generic_category().message(errno));
      if (got == 0) return Error(ErrorCode::kProtocol, "it became shorter while it was read");
      into = into.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

 private:
  int fd_;
  std::uint64_t size_;
};

// The bytes of one entry.
class EntryBytes : public StorageBytes {
 public:
  EntryBytes(std::shared_ptr<const ZipReader> zip, const ZipEntry& entry)
      : zip_(std::move(zip)), entry_(entry) {}

  std::size_t size() const override { return entry_.bytes; }
  Result<void> read(std::span<std::byte> into) const override { return zip_->read(entry_, into); }

 private:
  std::shared_ptr<const ZipReader> zip_;
  const ZipEntry& entry_;
};

// torch.save names the folder after the file.
Result<std::string> folder_of(const ZipReader& zip) {
  std::string folder;
  for (const ZipEntry& entry : zip.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash + 1) != kPickleName) continue;
    return entry.name.substr(0, slash + 1);
  }
  return Error(ErrorCode::kProtocol, "no entry 'data.pkl': not a file of torch.save");
}

Result<std::string> read_text(const ZipReader& zip, const ZipEntry& entry, std::size_t bytes_max) {
  if (entry.bytes > bytes_max) {
    return Error(ErrorCode::kLimit, fmt::format("entry '{}' has {} bytes, at most {} are read",
                                                printable(entry.name), entry.bytes, bytes_max));
  }
  std::string text(entry.bytes, '\0');
  auto read = zip.read(entry, std::as_writable_bytes(std::span(text)));
  if (!read) return read.error();
  return text;
}

// Files of before 2023 have no such entry, and are little-endian.
Result<void> check_byte_order(const ZipReader& zip, const std::string& folder) {
  constexpr std::size_t kOrderBytesMax = 64;
  const ZipEntry* entry = zip.find(folder + "byteorder");
  if (entry == nullptr) return {};
  const auto order = read_text(zip, *entry, kOrderBytesMax);
  if (!order) return order.error();
  if (*order == "little") return {};
  return Error(ErrorCode::kProtocol,
               fmt::format("its byteorder is '{}', only little is read", printable(*order)));
}

// Hashes all names, lengths and CRCs, and thus all bytes.
std::uint64_t fingerprint_of(const ZipReader& zip) {
  std::uint64_t value = kFnvBasis;
  const auto fold = [&value](std::uint64_t number) {
    for (unsigned i = 0; i < 8; ++i) value = (value ^ ((number >> (8U * i)) & 0xFFU)) * kFnvPrime;
  };
  for (const ZipEntry& entry : zip.entries()) {
    for (const char character : entry.name) fold(static_cast<unsigned char>(character));
    fold(entry.bytes);
    fold(entry.crc);
  }
  return value;
}

Error at(std::string_view step, const std::filesystem::path& path, const Error& error) {
  return {error.code(), fmt::format("{} checkpoint {}: {}", step, path.string(), error.message())};
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: a pipe must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Error(ErrorCode::kSystem, std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return Error(ErrorCode::kSystem, "it is no regular file");
  }
  return std::make_shared<OpenFile>(fd, static_cast<std::uint64_t>(status.st_size));
}

Result<CheckpointFile> read_checkpoint(std::shared_ptr<const ByteSource> source, Objects objects) {
  auto opened = ZipReader::open(std::move(source));
  if (!opened) return opened.error();
  const auto zip = std::make_shared<const ZipReader>(std::move(*opened));
  const auto folder = folder_of(*zip);
  if (!folder) return folder.error();
  if (auto checked = check_byte_order(*zip, *folder); !checked) return checked.error();
  const auto pickle =
      read_text(*zip, *zip->find(*folder + std::string(kPickleName)), kMaxPickleBytes);
  if (!pickle) return pickle.error();
  const FindStorage find_storage =
      [&](const std::string& key) -> Result<std::shared_ptr<const StorageBytes>> {
    const ZipEntry* entry = zip->find(*folder + "data/" + key);
    if (entry != nullptr) return std::make_shared<EntryBytes>(zip, *entry);
    return Error(ErrorCode::kProtocol, fmt::format("no entry for storage '{}'", printable(key)));
  };
  auto value = read_pickle(std::as_bytes(std::span(*pickle)), find_storage, objects);
  if (!value) return Error(value.error().code(), "data.pkl, " + value.error().message());
  const ZipEntry* const id_entry = zip->find(*folder + std::string(kSaveIdName));
  auto save_id = id_entry == nullptr ? std::string() : read_text(*zip, *id_entry, kMaxSaveIdBytes);
  if (!save_id) return save_id.error();
  return CheckpointFile{std::move(*value), fingerprint_of(*zip), std::move(*save_id)};
}

Result<CheckpointFile> read_checkpoint_file(const std::filesystem::path& path, Objects objects) {
  auto source = open_file(path);
  if (!source) return at("load", path, source.error());
  auto read = read_checkpoint(std::move(*source), objects);
  if (!read) return at("load", path, read.error());
  return read;
}

Result<void> write_pickled(const ByteSink& sink, const PickleOutput& pickled,
                           std::string_view save_id) {
  ZipWriter zip(sink);
  const auto add = [&zip](std::string_view name, std::string_view text) {
    return zip.add(fmt::format("{}/{}", kFolder, name), std::as_bytes(std::span(text)));
  };
  if (auto added = add(kPickleName, pickled.bytes); !added) return added;
  if (auto added = add("byteorder", "little"); !added) return added;
  for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
    const StorageBytes& storage = *pickled.storages[i];
    std::vector<std::byte> loaded;  // of another file
    auto bytes = storage.memory();
    if (bytes.size() != storage.size()) {
      loaded.resize(storage.size());
      if (auto read = storage.read(loaded); !read) return read;
      bytes = loaded;
    }
    const std::string name = fmt::format("{}/data/{}", kFolder, i);
    if (auto added = zip.add(name, bytes); !added) return added;
  }
  if (auto added = add("version", kVersion); !added) return added;
  if (!save_id.empty()) {
    if (auto added = add(kSaveIdName, save_id); !added) return added;
  }
  return zip.finish();
}

Result<void> write_checkpoint(const ByteSink& sink, const Value& value) {
  auto pickled = write_pickle(value);
  if (!pickled) return pickled.error();
  return write_pickled(sink, *pickled);
}

Result<void> write_pickled_file(const std::filesystem::path& path, const PickleOutput& pickled,
                                const SaveOptions& options) {
  auto file = AtomicFile::create(path);
  if (!file) return at("save", path, file.error());
  auto written = write_pickled(
      [&file](std::span<const std::byte> bytes) { return file->write(bytes); }, pickled);
  // The best one's name comes first. In the other order a program that is killed in between would
  // know a best number without its file.
  if (written)
    written = file->commit(options.is_best ? best_name_of(path) : std::filesystem::path());
  if (!written) return at("save", path, written.error());
  return {};
}

Result<void> write_checkpoint_file(const std::filesystem::path& path, const Value& value,
                                   const SaveOptions& options) {
  auto pickled = write_pickle(value);
  if (!pickled) return at("save", path, pickled.error());
  return write_pickled_file(path, *pickled, options);
}

std::filesystem::path best_name_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::size_t dot = name.find('.', 1);
  return path.parent_path() / ("model_best" + (dot == std::string::npos ? "" : name.substr(dot)));
}

}  // namespace ddprun::worker
