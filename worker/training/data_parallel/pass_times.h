// How long the parts of passes take. PyTorch samples the times of some passes
// (torch/csrc/distributed/c10d/logger.cpp, 2.11). Here each pass is timed, except on a GPU.
#pragma once

#include <c10/core/Device.h>
#include <ddprun/collective.h>
#include <ddprun/log_record.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "worker/training/data_parallel/pass_events.h"

namespace ddprun::worker {

// When the parts of the latest pass began and ended, by steady_clock, and how long they took, also
// on average. On a GPU the host only launches them. How long they took is read from events there,
// of the passes that is_measured() names. GradientReducer owns it.
class PassTimes {
 public:
  // `device`: of the gradients. `ranks` must outlive it.
  PassTimes(c10::Device device, const Collective& ranks);

  void begin_pass();  // marks kForwardBegins
  void mark(PassMoment moment);
  // Unless it was marked in this pass already.
  void mark_first(PassMoment moment);
  // The pass is complete. It counts if all moments were marked: a Join's shadow has no forward().
  void end_pass();

  // Also reads what the GPU has reached by now.
  void write(LogRecord& record);

 private:
  struct Part {
    const char* key;
    PassMoment begin;
    PassMoment end;
  };
  static const std::array<Part, 4> kParts;
  std::int64_t at(PassMoment moment) const { return moments_[static_cast<std::size_t>(moment)]; }
  // Adds a pass. `between(begin, end)`: nanoseconds.
  template <typename Between>
  void add(const Between& between) {
    ++passes_;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      last_[i] = between(kParts[i].begin, kParts[i].end);
      totals_[i] += last_[i];
    }
  }

  std::optional<PassEvents> events_;                  // on a GPU
  std::array<std::int64_t, kPassMoments> moments_{};  // 0: not in this pass
  std::array<std::int64_t, 4> totals_{};              // of the passes, by part
  std::array<std::int64_t, 4> last_{};
  std::int64_t passes_ = 0;
};

}  // namespace ddprun::worker
