// A file descriptor with one owner: the FileHandle that holds it closes it. It can be moved and not
// copied. Two owners would close the same number twice. The second close could hit a file that
// another thread has opened meanwhile. It opens nothing itself. Any thread, but one at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace ddprun {

// Closes its descriptor at destruction. -1 means that it holds none.
class FileHandle {
 public:
  // Owns `fd` from now on.
  explicit FileHandle(int fd = -1) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(other.release()) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = other.release();
    }
    return *this;
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  ~FileHandle() { close(); }

  // The handle still owns the descriptor: the caller must not close it.
  int get() const { return fd_; }
  // Gives the descriptor to the caller, who must close it. The handle is then empty.
  int release() { return std::exchange(fd_, -1); }
  // Closes now. May be called again. Errors are ignored: Linux has freed the number even then
  // (close(2), "Dealing with error returns from close()").
  void close() {
    if (fd_ >= 0) ::close(release());
  }

 private:
  int fd_;
};

}  // namespace ddprun
