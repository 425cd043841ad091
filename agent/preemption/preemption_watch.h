// This node's part in saving after the same step on all ranks (rendezvous/core/preemption.h). It
// tells the rendezvous of a notice. It writes the rendezvous' orders into the workers' pages, and
// says how far the workers are. A worker that counts its steps takes the signal by itself, after
// the agreed one. The others get it from here. Nothing runs while there is no notice. Loop's
// thread; owned by Agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/standby/worker_pages.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// A rank that waits for the next order goes on after so long. It is longer than the host waits.
inline constexpr std::chrono::seconds kHoldLimit{10};
// Ranks may not come to the step. They get the signal so long before the deadline, or a quarter of
// the time before.
inline constexpr std::chrono::seconds kLateAtMost{10};

class PreemptionWatch {
 public:
  struct Attempt {
    std::int64_t round = 0;
    int workers = 0;
  };
  struct Handlers {
    std::function<rendezvous::Session*()> session;
    std::function<const WorkerPages*()> pages;  // null: there are none
    std::function<std::vector<int>()> running;  // local ranks of the workers that run
    std::function<std::string()> folder;        // the job's own; empty: there is none
    // The workers end after the step of this order, or save and go on. Called before any of them
    // is signalled.
    std::function<void(const rendezvous::StepOrder&)> agreed;
    std::function<void(int local_rank, const rendezvous::StepOrder&)> signal;
    // Nobody has answered the notice within rendezvous::order_limit(): the workers are asked to end
    // as without one, and killed at `end`.
    std::function<void(int signo, Time end)> stop;
  };

  PreemptionWatch(asio::io_context& loop, Handlers handlers);
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;
  PreemptionWatch(PreemptionWatch&&) = delete;
  PreemptionWatch& operator=(PreemptionWatch&&) = delete;
  ~PreemptionWatch() = default;

  // The path of the file that appears with an order. Empty: there is no folder.
  std::string notice_file() const;

  void attempt_begins(const Attempt& attempt) { attempt_ = attempt; }
  // The workers are gone. A notice that has no answer yet is kept.
  void attempt_ends();

  // This node is about to be taken away. Returns false if no workers run: then nobody is told.
  bool give_notice(int signo, std::chrono::milliseconds deadline);

  // Ranks that wait at a step go on. Call it before they are asked to end for another reason.
  void let_go();

  // Takes StepOrder of this round, and nothing else.
  void hear(const rendezvous::HostMessage& message);

 private:
  void hold(const rendezvous::StepOrder& order);
  void answer(const rendezvous::StepOrder& order) const;
  void answer_when_free(const rendezvous::StepOrder& order);
  bool awaits_checkpoint() const;
  void take(const rendezvous::StepOrder& order);
  void leave_file(const rendezvous::StepOrder& order) const;
  bool has_taken(int local_rank) const;
  bool asks_itself(int local_rank) const;
  void step_is_late();
  void signal_others();
  std::int64_t most_steps() const;
  void give(const PageOrder& order, std::int64_t step) const;

  const Handlers handlers_;
  std::optional<Attempt> attempt_;  // unset: no attempt runs
  int notice_ = 0;                  // the signal of a notice without an answer; 0: there is none
  Time notice_ends_{};              // the deadline of that one
  std::optional<rendezvous::StepOrder> taken_;
  bool is_holding_ = false;  // ranks may wait for the next order
  std::set<int> signalled_;  // local ranks that got the signal of `taken_` from here
  std::optional<rendezvous::StepOrder> asked_;  // kAsk, not answered yet
  Alarm ask_alarm_;
  Alarm notice_alarm_;  // nobody answers the notice
  Alarm hold_alarm_;    // nobody says what follows
  Alarm late_alarm_;    // ranks do not come to the step
};

}  // namespace ddprun::agent
