#include "agent/preemption/preemption_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/file_handle.h"

namespace ddprun::agent {
namespace {

// As long as ranks are on their way to a checkpoint, while a further step is wanted.
constexpr std::chrono::milliseconds kLookForCheckpoint{20};

// Numbers in a page have 30 bits, and 0 is none.
std::uint32_t page_number(std::int64_t number) {
  constexpr std::int64_t kNumbers = (std::int64_t{1} << 30) - 1;
  return static_cast<std::uint32_t>(number % kNumbers + 1);
}

PageOrder page_order(const rendezvous::StepOrder& order) {
  return {.number = page_number(order.number),
          .is_taken = order.stage == rendezvous::StepStage::kTake,
          .is_end = order.is_end,
          .signo = order.step > 0 ? order.signo : 0};
}

}  // namespace

PreemptionWatch::PreemptionWatch(asio::io_context& loop, Handlers handlers)
    : handlers_(std::move(handlers)),
      ask_alarm_(loop, [this] { answer_when_free(*asked_); }),
      notice_alarm_(loop, [this] { handlers_.stop(std::exchange(notice_, 0), notice_ends_); }),
      hold_alarm_(loop, [this] { let_go(); }),
      late_alarm_(loop, [this] { step_is_late(); }) {}

std::string PreemptionWatch::notice_file() const {
  return handlers_.folder().empty() ? "" : handlers_.folder() + "/notice";
}

void PreemptionWatch::attempt_ends() {
  attempt_.reset();
  taken_.reset();
  signalled_.clear();
  is_holding_ = false;
  ask_alarm_.set(Time::max());
  hold_alarm_.set(Time::max());
  late_alarm_.set(Time::max());
  if (!notice_file().empty()) ::unlink(notice_file().c_str());
}

bool PreemptionWatch::give_notice(int signo, std::chrono::milliseconds deadline) {
  if (!attempt_) return false;
  if (taken_ && taken_->is_end) return true;
  notice_ = signo;
  notice_ends_ = now() + deadline;
  notice_alarm_.set(now() + rendezvous::order_limit(deadline));
  handlers_.session()->give_notice(
      {.round = attempt_->round, .signo = signo, .deadline = deadline});
  return true;
}

void PreemptionWatch::hear(const rendezvous::HostMessage& message) {
  const auto* order = std::get_if<rendezvous::StepOrder>(&message);
  if (!attempt_ || order == nullptr || order->round != attempt_->round) return;
  switch (order->stage) {
    case rendezvous::StepStage::kAsk:
      return answer_when_free(*order);
    case rendezvous::StepStage::kHold:
      return hold(*order);
    case rendezvous::StepStage::kTake:
      return take(*order);
  }
}

// The answer comes after it: a rank that has passed the step did so before.
void PreemptionWatch::hold(const rendezvous::StepOrder& order) {
  give(page_order(order), order.step);
  is_holding_ = true;
  hold_alarm_.set(now() + kHoldLimit);
  answer(order);
}

void PreemptionWatch::let_go() {
  if (!std::exchange(is_holding_, false)) return;
  hold_alarm_.set(Time::max());
  if (attempt_) give({}, 0);
}

void PreemptionWatch::give(const PageOrder& order, std::int64_t step) const {
  const WorkerPages* const pages = handlers_.pages();
  if (pages == nullptr) return;
  std::vector<int> ranks(static_cast<std::size_t>(attempt_->workers));
  std::iota(ranks.begin(), ranks.end(), 0);
  pages->give_order(ranks, order, step);
}

void PreemptionWatch::answer(const rendezvous::StepOrder& order) const {
  handlers_.session()->answer_step(
      {.round = order.round, .number = order.number, .steps = most_steps()});
}

// A page has room for one order. Ranks that have not come to the step of the last checkpoint would
// miss it.
void PreemptionWatch::answer_when_free(const rendezvous::StepOrder& order) {
  if (!awaits_checkpoint()) return answer(order);
  asked_ = order;
  ask_alarm_.set(now() + kLookForCheckpoint);
}

bool PreemptionWatch::awaits_checkpoint() const {
  if (!taken_ || handlers_.pages() == nullptr) return false;
  return std::ranges::any_of(handlers_.running(), [this](int rank) {
    return !has_taken(rank) && !signalled_.contains(rank);
  });
}

std::int64_t PreemptionWatch::most_steps() const {
  const WorkerPages* const pages = handlers_.pages();
  std::uint64_t most = 0;
  if (pages == nullptr) return 0;
  for (const int rank : handlers_.running())
    most = std::max<std::uint64_t>(most, pages->page(rank).steps);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(most, INT64_MAX));
}

void PreemptionWatch::take(const rendezvous::StepOrder& order) {
  notice_ = 0;
  notice_alarm_.set(Time::max());
  ask_alarm_.set(Time::max());
  hold_alarm_.set(Time::max());
  is_holding_ = false;
  taken_ = order;
  signalled_.clear();
  handlers_.agreed(order);
  leave_file(order);
  // Before the pages: a worker that finds it there would count as told.
  if (order.step == 0 || handlers_.pages() == nullptr) signal_others();
  give(page_order(order), order.step);
  late_alarm_.set(now() + order.deadline -
                  std::min<std::chrono::nanoseconds>(kLateAtMost, order.deadline / 4));
}

// For programs that neither take a signal nor ask. It has the step, and when the time is over.
void PreemptionWatch::leave_file(const rendezvous::StepOrder& order) const {
  if (!order.is_end || notice_file().empty()) return;
  const auto ends = std::chrono::system_clock::now() + order.deadline;
  const std::string text = fmt::format(
      "{} {}\n", order.step,
      std::chrono::duration_cast<std::chrono::seconds>(ends.time_since_epoch()).count());
  const std::string path = notice_file();
  const FileHandle file(
      ::open((path + ".new").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) return;
  const bool is_whole =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (is_whole) ::rename((path + ".new").c_str(), path.c_str());
}

bool PreemptionWatch::has_taken(int local_rank) const {
  const WorkerPages* const pages = handlers_.pages();
  if (pages == nullptr) return false;
  const std::uint64_t taken = pages->page(local_rank).taken;
  return (taken & ~kAsksItself) == page_number(taken_->number);
}

bool PreemptionWatch::asks_itself(int local_rank) const {
  const WorkerPages* const pages = handlers_.pages();
  return pages != nullptr && (pages->page(local_rank).taken & kAsksItself) != 0;
}

// A program that asks hears of it at its next question, whatever its step. A signal would end it.
void PreemptionWatch::step_is_late() {
  if (!attempt_ || !taken_) return;
  for (const int rank : handlers_.running())
    if (!has_taken(rank) && asks_itself(rank))
      handlers_.pages()->give_order({&rank, 1}, page_order(*taken_), 0);
  signal_others();
}

// The ranks that have not heard of it by themselves, and do not ask. A program may count no steps,
// or be at something long.
void PreemptionWatch::signal_others() {
  if (!attempt_ || !taken_) return;
  for (const int rank : handlers_.running()) {
    if (has_taken(rank) || asks_itself(rank)) continue;
    if (signalled_.insert(rank).second) handlers_.signal(rank, *taken_);
  }
}

}  // namespace ddprun::agent
