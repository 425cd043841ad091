// Suspects that a job stands still. Every few seconds it hears how far the workers of this node
// are. It answers whether the nodes should look closer. A suspicion costs a look and harms nobody:
// the verdict (rendezvous/core/standstill.h) says whether anything is wrong. Pure. Owned by
// Standstills.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "rendezvous/core/standstill.h"

namespace ddprun::agent {

// A worker as one look sees it.
struct WorkerSight {
  bool lives = false;
  bool has_witness = false;  // it can be asked where it is (agent/standby/python/witness.py)
  std::uint64_t steps = 0;   // of its optimizers
  Time last_step{};          // Time{}: none is done
  // CPU time of its processes so far. It counts only for a worker without steps.
  std::chrono::milliseconds cpu{0};
};

class StandstillWatch {
 public:
  // How often it is told of the workers.
  static constexpr std::chrono::seconds kEvery{5};
  // A worker is quiet for at least so long before anyone looks, and longer if its steps are long.
  static constexpr std::chrono::seconds kShortest{10};
  static constexpr int kStepsMissed = 8;
  // A worker without steps is quiet if it uses less than this part of a CPU.
  static constexpr double kIdleCpu = 0.02;
  // Ranks of which none waits in a call may wait for something that nobody sees, as long as this.
  static constexpr std::chrono::seconds kQuietTogether{60};
  // So long the job is quiet before a rank is ended once more, and then twice as long each time.
  static constexpr std::chrono::seconds kQuietAgain{60};
  // All nodes have answered by then, or the host of the rendezvous is another one.
  static constexpr std::chrono::seconds kVerdictLimit{40};

  // The workers of a new attempt have started.
  void attempt_begins(std::size_t workers, Time now);

  // Returns whether the nodes should look. Then it answers false until verdict_came(), or for
  // kVerdictLimit.
  bool looked(const std::vector<WorkerSight>& workers, Time now);

  // The worth of a verdict to people. kLookAgain: an alarm that is not certain, seen for the first
  // time. kKnown: an alarm that they heard already.
  enum class Belief { kNone, kLookAgain, kKnown, kNew };

  // The verdict on a suspicion, whoever had it.
  Belief verdict_came(const rendezvous::Verdict& verdict, Time now);
  // Whether a rank may be ended for a verdict that is believed. It was seen twice, and no worker of
  // this node has moved meanwhile. After each time that one was ended the job has longer: it may
  // have gone on by itself.
  bool may_act(const rendezvous::Verdict& verdict, Time now);
  // The caller asks for another look at once.
  void suspects_again(Time now) { suspected_ = now; }

  // The last alarm, once steps go on after it: it was none, and the job stood still for so long.
  // Nothing otherwise. Says it once.
  std::optional<std::chrono::nanoseconds> went_on_after();

 private:
  struct Worker {
    bool is_judged = false;  // it lives, and it can be told whether it stands
    std::uint64_t steps = 0;
    Time last_step{};
    std::chrono::milliseconds cpu{0};
    Time quiet_since{};
    std::chrono::nanoseconds look_after{0};  // of quiet: the next suspicion
  };

  void look_at(Worker& worker, const WorkerSight& sight, Time now);
  void moved(Worker& worker, Time when);
  void look_whether_it_went_on();
  std::chrono::nanoseconds bound(const Worker& worker) const;
  std::chrono::nanoseconds quiet_for(Time now) const;
  bool counts_steps() const;

  std::vector<Worker> workers_;
  Time looked_{};
  std::deque<std::chrono::nanoseconds> gaps_;  // between steps, means of the last looks
  std::chrono::nanoseconds learned_{0};        // a phase so long was no standstill
  std::optional<Time> suspected_;              // no verdict has come since
  std::string seen_once_;                      // the last verdict, if it is an alarm
  bool is_second_ = false;                     // it was the same as the one before
  int acted_ = 0;                              // times that a rank was ended, in all attempts
  std::string told_;                           // the last that people heard
  // People heard of a standstill: since when it was quiet, and when they heard.
  std::optional<Time> quiet_since_;
  Time told_at_{};
  std::optional<std::chrono::nanoseconds> went_on_;
};

}  // namespace ddprun::agent
