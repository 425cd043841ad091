// How far a pass is. A pass is one forward() and its backward(). Pure: it knows no tensors, no
// ranks and no collective. GradientReducer owns it, tells it what happens, and does what it
// answers. It may be called from the training thread and the autograd thread, never from both at
// once.
//
//   state     leaves by
//   Idle      arm -> Armed; shadow -> Reducing
//   Armed     gradient or backward_began -> Reducing; shadow -> Reducing
//   Reducing  all_summed -> Reduced; threw -> Failed
//   Reduced   step_made -> Stepped; begin -> Idle, which counts the step
//   Stepped   begin -> Idle
//   Failed    reset -> Idle, unless the ranks have parted
//
// begin() is refused in Reducing and Failed. arm() and shadow() in Reduced or Stepped begin the
// pass, too. reset() leads from every state to Idle, and ranks_parted() to Failed for good. An
// event that a state does not list changes nothing. The table itself is in pass.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::worker {

class Pass {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kArmed,     // the next backward() averages gradients
    kReducing,  // backward() has begun, and not all sums are complete
    kReduced,   // all sums are complete
    kStepped,   // the program has made a step with them
    kFailed,    // a hook, a sum or reset() has thrown
  };
  State state() const { return state_; }

  // A forward() with gradients begins.
  enum class BeginResult : std::uint8_t {
    kUnfinished,  // refused: the pass before has not ended. Nothing has changed
    kAgain,       // no pass was summed since the begin() before
    kAfterSums,   // the sums of the pass before are used: its step counts
  };
  BeginResult begin();

  // A forward() has ended whose gradients shall be averaged.
  void arm();
  // This rank has no batch, and sums zeros.
  void shadow();

  // backward() has begun. True: once in each pass that is armed.
  [[nodiscard]] bool backward_began();

  // A hook has a gradient.
  enum class Gradient : std::uint8_t {
    kTakesPart,     // in the sums of this pass
    kOwn,           // it stays this rank's own
    kOwnAfterSums,  // the same, on top of averages; once: the program is to be warned
  };
  [[nodiscard]] Gradient gradient() {
    return state_ == State::kReducing ? Gradient::kTakesPart : other_gradient();
  }

  // The parameters of a bucket have their averages.
  void bucket_done() { ++buckets_done_; }
  // backward() has made the step of a parameter, and other sums of the pass are under way.
  void parameter_stepped() { ++parameters_stepped_; }
  void all_summed();
  // A hook or a sum has thrown.
  void threw();

  // The program has made a step.
  void step_made();
  // An exception has told the program that the pass is unfinished.
  void tell() { told_ = true; }
  // All ranks have given the pass up; or reset() has found that they have parted.
  void reset();
  void ranks_parted();

  // No step may follow, and no other pass may begin.
  bool unfinished() const { return state_ == State::kReducing || state_ == State::kFailed; }
  // An exception of this pass has told the program of it.
  bool told() const { return told_ || state_ == State::kFailed; }

  // Counts since construction. That of armed passes is the number of the latest, for messages.
  std::uint64_t armed() const { return armed_; }
  std::uint64_t summed() const { return summed_; }
  std::uint64_t steps() const { return steps_; }
  // Counts of the latest pass. The second one is 0 again as soon as all is summed.
  std::size_t buckets_done() const { return buckets_done_; }
  std::size_t parameters_stepped() const { return parameters_stepped_; }

 private:
  enum class Event : std::uint8_t;
  State go(Event event);
  void count_step_of(State before);
  void begin_numbers();
  bool takes_gradients() const;
  Gradient other_gradient();

  State state_ = State::kIdle;
  bool told_ = false;
  bool for_good_ = false;  // Failed: the ranks have parted
  bool began_ = false;     // backward_began() has returned true in this pass
  bool warned_ = false;    // once for all passes
  std::uint64_t armed_ = 0;
  std::uint64_t summed_ = 0;
  std::uint64_t steps_ = 0;
  std::size_t buckets_done_ = 0;
  std::size_t parameters_stepped_ = 0;
};

}  // namespace ddprun::worker
