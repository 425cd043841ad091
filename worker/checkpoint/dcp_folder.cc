#include "worker/checkpoint/dcp_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <random>
#include <system_error>

#include "worker/checkpoint/atomic_file.h"
#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/gathered_texts.h"

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMetadataName = ".metadata";
constexpr std::string_view kShardEnding = ".distcp";
// A job may have more ranks than a process may open files.
constexpr std::size_t kOpenShardsMax = 64;

Error in_folder(std::string_view step, const fs::path& folder, std::string_view why) {
  return {ErrorCode::kSystem, fmt::format("{} checkpoint {}: {}", step, folder.string(), why)};
}

Error system_error(std::string_view step, const fs::path& folder) {
  return in_folder(step, folder, std::generic_category().message(errno));
}

// "run/" and "run" are one folder.
fs::path plain(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

fs::path temporary_folder(const fs::path& folder) {
  fs::path temporary = folder;
  temporary += ".tmp";
  return temporary;
}

// Files of an AtomicFile, too, which its killed writer has left.
bool is_of_checkpoint(const fs::path& file) {
  const fs::path whole = file.extension() == ".tmp" ? file.stem() : file.filename();
  return whole == kMetadataName || whole.extension() == kShardEnding;
}

// The files of a checkpoint that is to be replaced; none if the folder is not there. The error
// names what else is in it.
Result<std::vector<fs::path>> files_of(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::path> files;
  const auto status = fs::symlink_status(folder, failure);
  if (!fs::exists(status)) return files;
  if (!fs::is_directory(status))
    return in_folder("save", folder, "it is no folder: expected one, or the name of a new one");
  fs::directory_iterator entry(folder, failure);
  for (; !failure && entry != fs::directory_iterator(); entry.increment(failure)) {
    if (!is_of_checkpoint(entry->path()) || !fs::is_regular_file(entry->symlink_status(failure)))
      return in_folder(
          "save", folder,
          fmt::format("it has '{}', which is no part of a checkpoint: give another name",
                      entry->path().filename().string()));
    files.push_back(entry->path());
  }
  if (failure) return in_folder("save", folder, failure.message());
  return files;
}

// Removes files that were looked at, and no others.
Result<void> remove_folder(const fs::path& folder) {
  const auto files = files_of(folder);
  if (!files) return files.error();
  for (const fs::path& file : *files)
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) return system_error("save", file);
  if (::rmdir(folder.c_str()) != 0 && errno != ENOENT) return system_error("save", folder);
  return {};
}

Result<void> flush(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) {
    const Error error = system_error("save", folder);
    if (fd >= 0) ::close(fd);
    return error;
  }
  ::close(fd);
  return {};
}

// `folder` is the one that an error names. NFS knows no exchange, and some others neither.
Result<void> exchange(const fs::path& one, const fs::path& other, const fs::path& folder) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return {};
  if (errno != EINVAL) return system_error("save", folder);
  return in_folder("save", folder,
                   "its file system cannot exchange two folders: give each save a new name");
}

// Exchanges two empty folders, so that a save fails before its state is written.
Result<void> try_exchange(const fs::path& temporary, const fs::path& folder) {
  std::error_code failure;
  if (!fs::exists(folder, failure) || fs::is_empty(folder, failure)) return {};
  const fs::path other = temporary_folder(temporary);
  ::rmdir(other.c_str());  // of a save that was killed
  if (::mkdir(other.c_str(), 0755) != 0) return system_error("save", other);
  auto exchanged = exchange(temporary, other, folder);
  ::rmdir(other.c_str());
  return exchanged;
}

// Gives the folder its name. One that has the name already is exchanged for it in one step.
// rename() alone replaces an empty one.
Result<void> give_name(const fs::path& temporary, const fs::path& folder) {
  if (auto flushed = flush(temporary); !flushed) return flushed;
  const bool renamed = ::rename(temporary.c_str(), folder.c_str()) == 0;
  if (!renamed) {
    if (errno != ENOTEMPTY && errno != EEXIST) return system_error("save", folder);
    if (auto exchanged = exchange(temporary, folder, folder); !exchanged) return exchanged;
  }
  if (auto flushed = flush(folder.has_parent_path() ? folder.parent_path() : "."); !flushed)
    return flushed;
  return renamed ? Result<void>() : remove_folder(temporary);
}

// ---- Saving. Ranks tell each other lists in a pickle.

std::string new_save_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

Value::List numbers_value(const std::vector<std::int64_t>& numbers) {
  Value::List list;
  for (const std::int64_t number : numbers) list.items.emplace_back(number);
  return list;
}

Value::List path_value(const DcpPath& path) {
  Value::List list;
  for (const auto& part : path)
    std::visit([&](const auto& each) { list.items.emplace_back(each); }, part);
  return list;
}

Result<std::string> write_items(const fs::path& temporary, const std::vector<DcpItem>& items,
                                int rank, const std::string& save_id) {
  const std::string name = fmt::format("__{}_0{}", rank, kShardEnding);
  Value::List rows;
  auto file = AtomicFile::create(temporary / name);
  if (!file) return in_folder("save", temporary, file.error().message());
  std::int64_t offset = 0;
  for (const DcpItem& item : items) {
    const std::int64_t begin = offset;
    if (!item.pickled.bytes.empty()) {
      const auto sink = [&](std::span<const std::byte> bytes) {
        offset += static_cast<std::int64_t>(bytes.size());
        return file->write(bytes);
      };
      auto written = write_pickled(sink, item.pickled, save_id);
      if (!written) return in_folder("save", temporary, written.error().message());
    }
    Value::List row;
    row.items.emplace_back(item.key);
    row.items.emplace_back(path_value(item.path));
    row.items.emplace_back(item.dtype);
    row.items.emplace_back(numbers_value(item.sizes));
    row.items.push_back(item.box ? Value(numbers_value(item.box->offsets)) : Value());
    row.items.push_back(item.box ? Value(numbers_value(item.box->sizes)) : Value());
    row.items.emplace_back(begin);
    row.items.emplace_back(offset - begin);
    rows.items.emplace_back(std::move(row));
  }
  if (auto committed = file->commit(); !committed)
    return in_folder("save", temporary, committed.error().message());
  auto pickled = write_pickle(Value(std::move(rows)));
  if (!pickled) return pickled.error();
  return std::move(pickled->bytes);
}

std::vector<std::int64_t> numbers_of(const Value& list) {
  std::vector<std::int64_t> numbers;
  for (const Value& item : *list.items()) numbers.push_back(*item.as<std::int64_t>());
  return numbers;
}

// The row is one of write_items().
void add_row(const std::vector<Value>& row, int rank, DcpMetadata& metadata) {
  const auto& key = *row[0].as<std::string>();
  const auto& dtype = *row[2].as<std::string>();
  const DcpBytes bytes{fmt::format("__{}_0{}", rank, kShardEnding),
                       static_cast<std::uint64_t>(*row[6].as<std::int64_t>()),
                       static_cast<std::uint64_t>(*row[7].as<std::int64_t>())};
  DcpPath path;
  for (const Value& part : *row[1].items()) {
    if (const auto* number = part.as<std::int64_t>()) {
      path.emplace_back(*number);
    } else {
      path.emplace_back(*part.as<std::string>());
    }
  }
  metadata.paths.insert_or_assign(key, std::move(path));
  if (dtype.empty()) {
    metadata.values.insert_or_assign(key, bytes);
    return;
  }
  DcpTensor& tensor = metadata.tensors[key];
  tensor.dtype = dtype;
  tensor.sizes = numbers_of(row[3]);
  if (row[4].items() != nullptr)
    tensor.chunks.push_back({{numbers_of(row[4]), numbers_of(row[5])}, bytes});
}

Result<void> write_metadata(const fs::path& temporary, const std::vector<std::string>& tables,
                            const std::string& save_id) {
  DcpMetadata metadata;
  metadata.save_id = save_id;
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    const auto rows = read_pickle(std::as_bytes(std::span(tables[rank])), nullptr);
    if (!rows) return in_folder("save", temporary, rows.error().message());
    for (const Value& row : *rows->items()) add_row(*row.items(), static_cast<int>(rank), metadata);
  }
  const std::string bytes = write_dcp_metadata(metadata);
  if (const auto read = read_dcp_metadata(std::as_bytes(std::span(bytes))); !read)
    return in_folder("save", temporary,
                     fmt::format("nobody could load it: {}", read.error().message()));
  auto file = AtomicFile::create(temporary / kMetadataName);
  if (!file) return in_folder("save", temporary, file.error().message());
  auto written = file->write(std::as_bytes(std::span(bytes)));
  if (written) written = file->commit();
  if (!written) return in_folder("save", temporary, written.error().message());
  return {};
}

// An empty folder for all ranks, and the number of this save.
Result<std::string> begin_save(const fs::path& folder, const fs::path& temporary) {
  if (auto checked = check_dcp_folder(folder); !checked) return checked.error();
  if (auto removed = remove_folder(temporary); !removed) return removed.error();
  if (::mkdir(temporary.c_str(), 0755) != 0) return system_error("save", temporary);
  if (auto tried = try_exchange(temporary, folder); !tried) {
    ::rmdir(temporary.c_str());
    return tried.error();
  }
  return new_save_id();
}

Result<std::string> end_save(const fs::path& folder, const fs::path& temporary,
                             const std::vector<std::string>& tables, const std::string& save_id) {
  if (auto written = write_metadata(temporary, tables, save_id); !written) return written.error();
  if (auto named = give_name(temporary, folder); !named) return named.error();
  return std::string();
}

// Other ranks wait for what this rank tells them next. So it throws nothing before.
template <typename Step>
Result<std::string> without_throw(const fs::path& folder, const Step& step) {
  try {
    return step();
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    return in_folder("save", folder, what.substr(0, what.find('\n')));
  }
}

// ---- Loading.

class FilePart : public ByteSource {
 public:
  FilePart(std::shared_ptr<const ByteSource> file, const DcpBytes& bytes)
      : file_(std::move(file)), offset_(bytes.offset), size_(bytes.length) {}

  std::uint64_t size() const override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override {
    return file_->read(offset_ + offset, into);
  }

 private:
  std::shared_ptr<const ByteSource> file_;
  std::uint64_t offset_;
  std::uint64_t size_;
};

}  // namespace

Result<void> check_dcp_folder(const fs::path& given) {
  const fs::path folder = plain(given);
  if (const auto files = files_of(folder); !files) return files.error();
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  if (::access((parent / ".").c_str(), W_OK | X_OK) != 0) return system_error("save", folder);
  return {};
}

Result<void> save_dcp(const fs::path& given, const Result<std::vector<DcpItem>>& items,
                      Collective& ranks) {
  const fs::path folder = plain(given);
  const fs::path temporary = temporary_folder(folder);
  const bool leads = ranks.rank() == 0;
  const auto agree = [&](auto step) { return gather_results(without_throw(folder, step), ranks); };
  // All ranks are done with the temporary folder then.
  const auto fail = [&](const Error& error) {
    if (leads) without_throw(folder, [&] { return remove_folder(temporary), std::string(); });
    return error;
  };
  const auto begun = agree([&]() -> Result<std::string> {
    if (!items) return items.error();
    return leads ? begin_save(folder, temporary) : std::string();
  });
  if (!begun) return fail(begun.error());
  const std::string& save_id = begun->front();
  const auto tables = agree([&] { return write_items(temporary, *items, ranks.rank(), save_id); });
  if (!tables) return fail(tables.error());
  const auto ended = agree([&]() -> Result<std::string> {
    return leads ? end_save(folder, temporary, *tables, save_id) : std::string();
  });
  return ended ? Result<void>() : fail(ended.error());
}

Result<DcpFolder> DcpFolder::open(const fs::path& folder) {
  DcpFolder opened(plain(folder));
  const fs::path path = opened.path_of(std::string(kMetadataName));
  const auto fail = [&](const Error& error) {
    return Error(error.code(),
                 fmt::format("load checkpoint {}: {}", path.string(), error.message()));
  };
  const auto file = open_file(path);
  if (!file) return fail(file.error());
  const std::size_t bytes_max = ObjectPickleBounds().bytes;
  if ((*file)->size() > bytes_max)
    return fail({ErrorCode::kLimit,
                 fmt::format("it has {} bytes, at most {} are read", (*file)->size(), bytes_max)});
  std::vector<std::byte> bytes((*file)->size());
  if (auto read = (*file)->read(0, bytes); !read) return fail(read.error());
  auto metadata = read_dcp_metadata(bytes);
  if (!metadata) return fail(metadata.error());
  opened.metadata_ = std::move(*metadata);
  return opened;
}

Result<std::shared_ptr<const ByteSource>> DcpFolder::shard(const std::string& name) const {
  const auto known = std::ranges::find(shards_, name, &OpenShard::first);
  if (known != shards_.end()) {
    std::rotate(known, known + 1, shards_.end());
    return shards_.back().second;
  }
  auto opened = open_file(path_of(name));
  if (!opened) return opened.error();
  if (shards_.size() == kOpenShardsMax) shards_.erase(shards_.begin());
  shards_.emplace_back(name, *opened);
  return opened;
}

Result<Value> DcpFolder::read(const DcpBytes& bytes) const {
  const auto fail = [&](const Error& error) {
    return Error(error.code(), fmt::format("load checkpoint {}: {}", path_of(bytes.file).string(),
                                           error.message()));
  };
  const auto file = shard(bytes.file);
  if (!file) return fail(file.error());
  const std::uint64_t size = (*file)->size();
  if (bytes.offset > size || bytes.length > size - bytes.offset)
    return fail(refused("it is cut short, or of another checkpoint"));
  auto read = read_checkpoint(std::make_shared<FilePart>(*file, bytes));
  if (!read) return fail(read.error());
  if (!metadata_.save_id.empty() && !read->save_id.empty() && read->save_id != metadata_.save_id)
    return fail(refused("it is of another save than the folder's .metadata"));
  return std::move(read->value);
}

}  // namespace ddprun::worker
