// The shell around StandstillWatch. It looks at this node's workers now and then, and takes the
// evidence when the rendezvous asks for it. It keeps the details of an alarm. The verdict comes of
// the rendezvous, and Agent acts on it. Loop's thread; owned by Agent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/standby/worker_pages.h"
#include "agent/standstill/hung_worker.h"
#include "agent/standstill/py_spy.h"
#include "agent/standstill/rank_look.h"
#include "agent/standstill/standstill_watch.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

class Standstills {
 public:
  // From the question to a witness to the reading of its answer.
  static constexpr std::chrono::seconds kWitnessLimit{1};
  // Between the two looks.
  static constexpr std::chrono::seconds kBetweenLooks{5};
  // The last answers have so long: a busy host may keep a witness from its own.
  static constexpr std::chrono::seconds kLastAnswers{6};

  struct Attempt {
    std::int64_t round = 0;
    int workers = 0;
    int first_rank = 0;  // of local rank 0
    std::string hostname{};
    bool acts = false;  // a rank is ended for a verdict
  };
  struct Workers {
    std::function<const WorkerPages*()> pages;  // null: there are none
    std::function<std::string()> folder;        // the job's own, where witnesses write
    std::function<bool(int)> has_ended_well;    // of a local rank
  };
  struct Handlers {
    std::function<rendezvous::Session*()> session;
    std::function<void(const rendezvous::Verdict&)> alarm;  // people should hear of it
    std::function<void(const rendezvous::Verdict&)> act;    // a rank may be ended for it
    std::function<void(std::chrono::nanoseconds)> went_on;  // after an alarm; so long
  };

  // `children` must outlive this.
  Standstills(asio::io_context& loop, Children& children, Workers workers, Handlers handlers);
  Standstills(const Standstills&) = delete;
  Standstills& operator=(const Standstills&) = delete;
  Standstills(Standstills&&) = delete;
  Standstills& operator=(Standstills&&) = delete;
  ~Standstills() = default;

  // The workers of a round have started.
  void attempt_begins(const Attempt& attempt);
  void attempt_ends();

  // Takes Look and StandstillVerdict of this round, and nothing else.
  void hear(const rendezvous::HostMessage& message);

  // Ends the worker that the verdict names, if it is one of this node and still stands.
  void end_worker(const rendezvous::Verdict& verdict);

  // Writes what the last look saw of each worker into `folder`, which is made if it can be.
  void keep_details(const std::string& folder, const std::string& sentence) const;

 private:
  struct WorkerLooks {
    std::uint64_t question = 0;  // the last one to its witness
    RankLook first{};
    RankLook second{};
    std::unique_ptr<PySpy> spy{};  // of the look that goes on; null: it is not asked
  };
  // The steps of a look, in order.
  enum class Stage { kNone, kFirstAnswers, kSecondLook, kSecondAnswers };

  void watch();
  void suspect();
  void begin_look(std::int64_t inquiry);
  void verdict_came(const rendezvous::Verdict& verdict);
  void go_on();
  void ask_witnesses();
  void ask_py_spy(int local_rank);
  void look_at_workers(RankLook WorkerLooks::*look);
  void read_answers(RankLook WorkerLooks::*look);
  bool lacks_answers() const;
  void give_evidence();
  WorkerSight sight_of(int local_rank) const;
  bool may_ask(int local_rank) const;
  bool may_spy(int local_rank) const;
  std::string spy_file(int local_rank) const;

  Children& children_;
  const Workers workers_;
  const Handlers handlers_;
  StandstillWatch watch_;
  std::vector<WorkerLooks> looks_;  // by local rank; empty: no attempt runs
  Attempt attempt_;
  Stage stage_ = Stage::kNone;
  std::int64_t inquiry_ = 0;
  Time first_look_{};
  Time second_look_{};
  Time answers_end_{};
  Alarm watch_alarm_;
  Alarm look_alarm_;
  HungWorker hung_worker_;
};

}  // namespace ddprun::agent
