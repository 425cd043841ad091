// The file at which ranks meet: its content, the right to put a record there, and a wait for one.
// It appears whole or not at all, and of several processes that want to put theirs there one does.
// Both rest on link(2) and rename(2) alone, which NFS has too. No lock is taken, since a process
// that dies on another host might keep it. It does not know what a record says. One thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::worker {

// 32 hex digits that no other process has.
std::string fresh_id();

class InitFile {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // `path` is absolute. `named` is how the user gave it; each error begins with it. Touches nothing
  // yet.
  InitFile(const std::string& path, std::string named);

  // Whether this process may make files in the folder; an error says why not. All ranks ask, so
  // that those do not wait whose rank 0 cannot write.
  Result<void> may_write() const;

  // Nothing if it is not there. Reads kInitRecordBytes and one byte more at most. Errors: no such
  // folder, it is no regular file, it cannot be read.
  Result<std::optional<std::string>> read();

  // Puts `content` there. False if something is there already. Errors: the folder cannot be
  // written, or its file system has no hard links.
  Result<bool> create(std::string_view content);

  // Takes it away, if it holds `content` or is gone. False if it holds something else, and is let
  // be.
  Result<bool> remove(std::string_view content);

  // Returns when such a file has appeared, or at `until`. Another host's is not announced here, so
  // `until` is soon, and the caller looks again.
  void wait(Deadline until);

  // `DDPRUN_INIT_METHOD=file:///shared/run1: what happened`.
  Error error(ErrorCode code, std::string_view what) const;

 private:
  Result<FileHandle> open_folder() const;
  Result<std::optional<std::string>> read_name(int folder, const std::string& name) const;
  Result<void> write_new(int folder, const std::string& name, std::string_view content) const;
  Error failed(std::string_view step, int why) const;
  Error unwritable(int why) const;
  bool has_appeared();

  std::string folder_;
  std::string name_;  // in the folder
  std::string named_;
  FileHandle watch_;  // inotify; empty where the kernel gives none: then the time alone ends a wait
};

}  // namespace ddprun::worker
