// The facts of DataParallel and of its latest pass, under the keys of PyTorch's ddp_logging_data
// (torch/csrc/distributed/c10d/logger.cpp, 2.11). PyTorch samples the times of some passes; here
// those of each pass are taken.
#pragma once

#include <ddprun/log_record.h>

#include <array>
#include <cstdint>

namespace ddprun::worker {

// Adds the variables that PyTorch's record has; "N/A" where one is not set, as there.
void write_environment(LogRecord& record);

// When the parts of the latest pass began and ended, and how long they took on average. The clock
// is steady_clock. GradientReducer owns it.
class PassTimes {
 public:
  enum class Moment : std::uint8_t {
    kForwardBegins,
    kBackwardBegins,  // forward() has ended
    kSumsBegin,       // the first one is launched
    kBackwardEnds,    // all gradients are computed
    kSumsEnd,
  };

  void mark(Moment moment);
  // Unless it was marked in this pass already.
  void mark_first(Moment moment);
  // The pass is complete: all moments were marked.
  void count_pass();

  void write(LogRecord& record) const;

 private:
  struct Part {
    const char* key;
    Moment begin;
    Moment end;
  };
  static const std::array<Part, 4> kParts;
  std::int64_t at(Moment moment) const { return moments_[static_cast<std::size_t>(moment)]; }

  std::array<std::int64_t, 5> moments_{};  // 0: not in this pass
  std::array<std::int64_t, 4> totals_{};   // of complete passes, by part
  std::array<std::int64_t, 4> last_{};
  std::int64_t passes_ = 0;
};

}  // namespace ddprun::worker
