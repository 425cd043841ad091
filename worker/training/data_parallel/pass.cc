#include "worker/training/data_parallel/pass.h"

#include <array>
#include <utility>

namespace ddprun::worker {

namespace {

bool is_after_sums(Pass::State state) {
  return state == Pass::State::kReduced || state == Pass::State::kStepped;
}

}  // namespace

enum class Pass::Event : std::uint8_t {
  kBegin,
  kArm,
  kShadow,
  kBackward,  // its begin, or a gradient
  kSummed,
  kThrew,
  kStep,
  kReset,
  kParted,
};

// The state after each event, by the state before it. Returns the state before it.
Pass::State Pass::go(Event event) {
  using enum State;
  // clang-format off
  static constexpr std::array<std::array<State, 6>, 9> kAfter{{
      //              Idle       Armed      Reducing   Reduced    Stepped    Failed
      /* begin    */ {kIdle,     kArmed,    kReducing, kIdle,     kIdle,     kFailed},
      /* arm      */ {kArmed,    kArmed,    kReducing, kArmed,    kArmed,    kFailed},
      /* shadow   */ {kReducing, kReducing, kReducing, kReducing, kReducing, kFailed},
      /* backward */ {kIdle,     kReducing, kReducing, kReduced,  kStepped,  kFailed},
      /* summed   */ {kIdle,     kArmed,    kReduced,  kReduced,  kStepped,  kFailed},
      /* threw    */ {kIdle,     kArmed,    kFailed,   kReduced,  kStepped,  kFailed},
      /* step     */ {kIdle,     kArmed,    kReducing, kStepped,  kStepped,  kFailed},
      /* reset    */ {kIdle,     kIdle,     kIdle,     kIdle,     kIdle,     kIdle},
      /* parted   */ {kFailed,   kFailed,   kFailed,   kFailed,   kFailed,   kFailed},
  }};
  // clang-format on
  const State before = state_;
  state_ = kAfter.at(static_cast<std::size_t>(event)).at(static_cast<std::size_t>(before));
  return before;
}

Pass::BeginResult Pass::begin() {
  const State before = go(Event::kBegin);
  if (unfinished()) return BeginResult::kUnfinished;
  count_step_of(before);
  return is_after_sums(before) ? BeginResult::kAfterSums : BeginResult::kAgain;
}

// A program that begins anew has used the sums: its step is made.
void Pass::count_step_of(State before) {
  if (before == State::kReduced) ++steps_;
}

void Pass::arm() {
  count_step_of(go(Event::kArm));
  begin_numbers();
}

void Pass::shadow() {
  count_step_of(go(Event::kShadow));
  begin_numbers();
}

void Pass::begin_numbers() {
  told_ = began_ = false;
  buckets_done_ = 0;
  ++armed_;
}

bool Pass::backward_began() {
  go(Event::kBackward);
  return takes_gradients() && !std::exchange(began_, true);
}

Pass::Gradient Pass::other_gradient() {
  const State before = go(Event::kBackward);
  if (takes_gradients()) return Gradient::kTakesPart;
  if (!is_after_sums(before) || std::exchange(warned_, true)) return Gradient::kOwn;
  return Gradient::kOwnAfterSums;
}

// A pass that has failed still takes gradients: a second one of a parameter is an error of its own.
bool Pass::takes_gradients() const { return unfinished() && !for_good_; }

void Pass::all_summed() {
  if (go(Event::kSummed) != State::kReducing) return;
  ++summed_;
  parameters_stepped_ = 0;
}

void Pass::threw() { go(Event::kThrew); }

void Pass::step_made() { count_step_of(go(Event::kStep)); }

void Pass::reset() {
  if (for_good_) return;
  go(Event::kReset);
  told_ = false;
}

void Pass::ranks_parted() {
  go(Event::kParted);
  for_good_ = true;
}

}  // namespace ddprun::worker
