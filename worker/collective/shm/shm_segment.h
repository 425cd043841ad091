// A piece of memory that the ranks of one host map. It has no name in any file system
// (memfd_create(2)), so no /dev/shm limits it, and nothing stays behind, whatever dies. While its
// creator has the file open, others open it by its number, over /proc. They must be allowed to look
// into that process (ptrace(2), PTRACE_MODE_READ). A ShmSegment owns its mapping and its file; it
// synchronises nobody. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::worker {

class ShmSegment {
 public:
  // Creates and maps `bytes` of zeroed memory. Nobody has its pages yet: reserve() takes them.
  // kLimit if less memory is left than that, here or in our cgroup, swap not counted. The text: "N
  // MiB of shared memory needed for <purpose>, M MiB of memory are left: …". kSystem for every
  // other failure.
  static Result<ShmSegment> create(std::size_t bytes, std::string_view purpose);

  // Maps the segment that another process has created. That must still have its file open (else
  // kSystem). It must be `bytes` long, and nobody may make it shorter (else kProtocol).
  static Result<ShmSegment> open(const std::string& name, std::size_t bytes);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  // Unmaps and closes.
  ~ShmSegment() = default;

  // Takes the pages of a part now, in the memory that is near to this process. At its first use a
  // page that cannot be had would end the process with SIGBUS. `huge`: as huge pages, where the
  // kernel can do that. kLimit where the kernel refuses, with its word; kSystem for every other
  // failure.
  Result<void> reserve(std::size_t offset, std::size_t bytes, bool huge, std::string_view purpose);

  // Enters all pages into this process's page table, so that no use of them faults. May fail.
  void enter_pages();

  // Nobody can open it any more. The memory lives until the last process unmaps it.
  void close_file() { file_ = FileHandle(); }

  std::byte* data() const { return data_.get(); }
  std::size_t size_bytes() const { return size_bytes_; }
  // "/proc/<pid>/fd/<number>", as other processes find it until close_file().
  std::string name() const;

 private:
  ShmSegment(std::shared_ptr<std::byte> data, std::size_t size_bytes, FileHandle file)
      : data_(std::move(data)), size_bytes_(size_bytes), file_(std::move(file)) {}

  std::shared_ptr<std::byte> data_;  // the mapping; one segment's, but under ThreadSanitizer
  std::size_t size_bytes_ = 0;
  FileHandle file_;
};

}  // namespace ddprun::worker
