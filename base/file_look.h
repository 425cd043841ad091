// A file that the user has named and another program writes. Its file server may have stopped to
// answer. So each look is on a thread of its own (base/bounded.h). Its caller waits as long as it
// wants. Loop's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bounded.h"

namespace ddprun {

struct FileContent {
  bool is_there = false;
  std::uint64_t inode = 0;
  std::int64_t size = 0;
  std::int64_t written_ns = 0;
  std::string start{};  // of a regular file, or of one that a link leads to

  bool operator==(const FileContent&) const = default;
};

class FileLook {
 public:
  // `most_bytes`: of FileContent::start.
  FileLook(std::string path, std::size_t most_bytes)
      : path_(std::move(path)), most_bytes_(most_bytes) {}

  // Begins a look. Returns false if one goes on: that one is left alone.
  bool begin();
  // Returns what the look has seen, once. Nothing: it is not over at `end`, or none was begun.
  std::optional<FileContent> until(std::chrono::steady_clock::time_point end);

 private:
  const std::string path_;
  const std::size_t most_bytes_;
  std::shared_ptr<FileContent> content_;  // its other owner is the thread, until it has answered
  std::optional<BoundedQuestion<std::size_t>> question_;
};

}  // namespace ddprun
