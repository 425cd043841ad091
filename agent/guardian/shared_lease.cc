#include "agent/guardian/shared_lease.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

namespace ddprun::agent {
namespace {

// An agent that was stopped asks its host, or waits for the next leader. Both answer sooner.
constexpr std::chrono::milliseconds kAnswerLimit{2500};

}  // namespace

SharedLease::SharedLease(asio::io_context& loop, LeaseNote* note, std::function<void()> look)
    : note_(note), guardian_(::getppid()), alarm_(loop, std::move(look)) {}

void SharedLease::workers_until(Time until) {
  if (note_ == nullptr) return;
  const auto ends = std::chrono::nanoseconds(until.time_since_epoch()).count();
  const auto before = note_->workers_until.exchange(ends);
  // The guardian wakes up at the end that it knows. It is called if that is too late. The signal is
  // one that it gets anyway, at the death of a child.
  const bool is_known = before != 0 && before <= ends && !note_->has_ended_workers;
  if (ends == 0 || is_known || ::getppid() != guardian_) return;
  ::kill(guardian_, SIGCHLD);
}

bool SharedLease::has_ended_workers() {
  if (note_ != nullptr && note_->has_ended_workers.exchange(false)) {
    has_ended_workers_ = true;
    hides_until_ = now() + kAnswerLimit;
    alarm_.set(hides_until_);
  }
  return has_ended_workers_;
}

bool SharedLease::hides_deaths() { return has_ended_workers() && now() < hides_until_; }

void SharedLease::attempt_begins() { has_ended_workers_ = false; }

}  // namespace ddprun::agent
