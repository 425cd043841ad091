// A piece of POSIX shared memory (shm_overview(7)) that the ranks of one host map. create()
// reserves all of it at once: if /dev/shm filled up later, the kernel would kill a rank with
// SIGBUS. The creator unlinks the name as soon as all ranks have mapped it. So nothing stays
// behind, whatever dies afterwards. A ShmSegment owns its mapping; it synchronises nobody. One
// thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/result.h"

namespace ddprun::worker {

class ShmSegment {
 public:
  // Creates and maps `bytes` of zeroed memory. The name is new: "/ddprun-<cookie>-<pid>-<random>".
  // `cookie` is the job's. kLimit if /dev/shm is too small: "N MiB of shared memory needed for
  // <purpose>, /dev/shm has M MiB free: …". kSystem for every other failure.
  static Result<ShmSegment> create(std::size_t bytes, std::string_view purpose,
                                   std::string_view cookie);

  // Maps the segment that another process has created. It must still have its name (else kSystem)
  // and be `bytes` long (else kProtocol).
  static Result<ShmSegment> open(const std::string& name, std::size_t bytes);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  // Unmaps. In the creator also unlinks, if unlink() was not called.
  ~ShmSegment();

  // Removes the name. The memory lives until the last process unmaps it. Does nothing in a process
  // that opened the segment, and nothing when called again.
  void unlink();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  const std::string& name() const { return name_; }  // "/ddprun-…", empty once unlinked

 private:
  ShmSegment(std::byte* data, std::size_t size_bytes, std::string name, bool linked)
      : data_(data), size_bytes_(size_bytes), name_(std::move(name)), linked_(linked) {}

  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::string name_;
  bool linked_ = false;  // this process created the name and has not removed it
};

}  // namespace ddprun::worker
