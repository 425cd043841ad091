// When the stream of a GPU reaches the moments of a pass. The host does not wait for it.
// PassTimes owns them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace ddprun::worker {

enum class PassMoment : std::uint8_t {
  kForwardBegins,
  kBackwardBegins,  // forward() has ended
  kSumsBegin,       // the first one is launched
  kBackwardEnds,    // all gradients are computed
  kSumsEnd,
};
inline constexpr std::size_t kPassMoments = 5;

// Says whether this pass is measured on a GPU. These are the first ten, then each hundredth one, as
// in PyTorch (torch/csrc/distributed/c10d/reducer.cpp, 2.11). `pass` counts from 1.
constexpr bool is_measured(std::int64_t pass) { return pass <= 10 || pass % 100 == 0; }

// The measured passes that nobody has read yet, the latest 16 of them. Only take() asks the GPU,
// and no step calls it. A pass that a graph captures is not measured: its events have no time.
class PassEvents {
 public:
  // `ranks` must outlive it.
  PassEvents(c10::Device device, const Collective& ranks) : device_(device), ranks_(ranks) {}

  // A pass begins. One that has not ended is dropped.
  void begin_pass();
  // The current stream of the device reaches the moment after the work that it holds now.
  void mark(PassMoment moment);
  // `whole`: all moments were marked. Else the pass is dropped.
  void end_pass(bool whole);

  // The times of one pass.
  class Pass {
   public:
    explicit Pass(c10::DeviceType type);
    // The stream has reached its end.
    bool is_over() const { return at(PassMoment::kSumsEnd).query(); }
    // Nanoseconds between two moments of a pass that is over.
    std::int64_t between(PassMoment begin, PassMoment end) const;

   private:
    friend class PassEvents;
    const c10::Event& at(PassMoment moment) const {
      return events_.at(static_cast<std::size_t>(moment));
    }

    std::vector<c10::Event> events_;  // by moment
  };
  // Gives the passes that are over to `read(pass)`, each once, in their order.
  template <typename Read>
  void take(const Read& read) {
    if (is_open_ || ranks_.is_capturing()) return;  // to ask for an event breaks a capture
    for (; !passes_.empty() && passes_.front().is_over(); passes_.pop_front())
      read(passes_.front());
  }

 private:
  static constexpr std::size_t kKeptMax = 16;

  void drop_open();

  c10::Device device_;
  const Collective& ranks_;
  std::deque<Pass> passes_;
  bool is_open_ = false;  // the last of them
  std::int64_t count_ = 0;
};

}  // namespace ddprun::worker
