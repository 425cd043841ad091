// The history of a job's rounds on this node: history.jsonl in the job's log folder, if wanted.
// Each event is a line of JSON. `ddprun report` reads it (launcher/report/history.h), also while
// the job runs and after it was killed. So a line is written when something happens, and the steps
// once a minute. Times are seconds since 1970. Loop's thread; owned by Reporter.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "agent/core/incident.h"
#include "agent/core/lifecycle.h"
#include "agent/report/incident_log.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// The environment's variable that wants it if it is 1. Without it the folder is torchrun's.
inline constexpr const char* kHistoryVariable = "DDPRUN_HISTORY";

class RoundHistory {
 public:
  // How often the steps are written while they go on.
  static constexpr std::chrono::seconds kEvery{60};

  // A line without its end.
  using Write = std::function<void(const std::string& line)>;
  RoundHistory(asio::io_context& loop, std::function<std::vector<WorkerProgress>()> progress,
               Write write);
  RoundHistory(const RoundHistory&) = delete;
  RoundHistory& operator=(const RoundHistory&) = delete;
  RoundHistory(RoundHistory&&) = delete;
  RoundHistory& operator=(RoundHistory&&) = delete;
  ~RoundHistory() = default;

  struct Node {
    std::string run_id;
    std::string hostname;
    int workers = 0;
  };
  // The workers of the round are about to start. `waited`: the node, for the round.
  void round_began(const Node& node, const Lifecycle& lifecycle, std::chrono::nanoseconds waited);
  void broken(const rendezvous::RoundBroken& message);
  void stands_still(const rendezvous::Verdict& verdict);
  void are_slow(const rendezvous::StragglerVerdict& verdict);
  void went_on(std::chrono::nanoseconds length);
  // The last worker of the round is gone. Nothing if no round began.
  void round_ended();
  // `text`: how; the cause in words.
  void job_ended(const Ending& ending, const std::string& text);

 private:
  void look();
  void write_steps();

  const std::function<std::vector<WorkerProgress>()> progress_;
  const Write write_;
  Alarm alarm_;
  std::int64_t round_ = 0;           // 0: none runs
  std::int64_t last_round_ = 0;      // of all
  std::uint64_t written_steps_ = 0;  // of the round
};

// Returns the worker that has done the fewest steps, of those that count any; null: none does.
const WorkerProgress* with_fewest_steps(const std::vector<WorkerProgress>& workers);

}  // namespace ddprun::agent
