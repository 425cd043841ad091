// A piece of POSIX shared memory that the ranks of one host map. Reserved in full when created: a
// tmpfs that fills up later would kill a rank with SIGBUS. The creator unlinks the name as soon as
// all ranks have mapped it, so that nothing stays behind whatever dies afterwards. No
// synchronisation in here.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/result.h"

namespace ddprun::worker {

class ShmSegment {
 public:
  // Creates and maps `bytes` of zeroed memory under a fresh random name. `purpose` completes the
  // error when it does not fit: "N MiB of shared memory needed for <purpose>, /dev/shm has M MiB
  // free: …".
  static Result<ShmSegment> create(std::size_t bytes, std::string_view purpose,
                                   std::string_view cookie);

  // Maps the segment another process created; it must still be linked and `bytes` long.
  static Result<ShmSegment> open(const std::string& name, std::size_t bytes);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();  // unmaps; unlinks where the creator has not yet

  // Removes the name; the memory lives until the last process unmaps it. Creator only; once or more
  // often.
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
