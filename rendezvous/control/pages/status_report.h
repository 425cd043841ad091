// The report of a process about itself and its jobs: plain values. metrics_text.h and status_page.h
// make their texts from them. An agent fills it with its one job, a daemon with all that it serves.
// Facts that a process cannot know stay unset and are shown nowhere. Texts may come from other
// hosts and may hold anything: the formatters escape them. No I/O; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::http {

using WallTime = std::chrono::system_clock::time_point;

// A node and its place. Seats of a job come in the order of their ranks.
struct SeatStatus {
  int node_rank = -1;  // -1: it has none
  std::string hostname;
  int first_rank = -1;  // global rank of its first worker; -1: not in a round
  int workers = 0;
  std::string state;  // one word: running, waiting, spare, …
};

// Something that ended a round or the job, as people are told it.
struct ReasonStatus {
  WallTime when{};
  std::string text;
};

// A round of the job, or a standstill.
struct PeriodStatus {
  bool is_round = true;
  WallTime begin{};
  std::optional<WallTime> end{};  // unset: it lasts
  std::int64_t round = 0;
  int workers = 0;     // of a round
  std::string text{};  // of a standstill: why
};

// How often a round broke for this reason, so that the workers started anew.
struct RestartCount {
  std::string reason;
  std::uint64_t count = 0;
};

struct JobStatus {
  std::string id;
  std::string state;       // one word: joining, running, …
  std::int64_t round = 0;  // its number; 0: none yet
  int world_size = 0;      // workers of that round
  int restarts = 0;        // spent of the budget
  int max_restarts = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  int nodes_in_round = 0;
  // Known only where the rendezvous is.
  std::optional<int> nodes_waiting{};
  std::optional<int> spares{};
  std::optional<int> sessions{};
  std::vector<RestartCount> restarts_by_reason{};
  std::vector<SeatStatus> seats{};
  bool knows_all_seats = false;         // false: `seats` has this node's own alone
  std::vector<ReasonStatus> reasons{};  // the newest first
  std::vector<PeriodStatus> periods{};  // the oldest first
  // Why the job stands still now, and the ranks that the others wait for, in order. Empty: it does
  // not, or nobody is to blame.
  std::string standstill{};
  std::vector<int> stuck_ranks{};
};

// A part of the job's incidents, such as the time until the old workers were gone.
struct StageStatus {
  std::string stage;
  std::uint64_t count = 0;
  double sum_s = 0;
  double last_s = 0;
};

struct StoreStatus {
  std::size_t keys = 0;
  std::size_t bytes = 0;
  std::size_t connections = 0;
};

struct WorkerSteps {
  int rank = 0;
  std::uint64_t steps = 0;
};

// The last minutes of a worker that are told.
inline constexpr std::chrono::minutes kChartLength{10};

// A worker's steps during some seconds.
struct StepSample {
  double age_s = 0;  // since their end
  double per_second = 0;
  double step_s = 0;  // of one step; 0: not known
};

// A worker of this process.
struct WorkerStatus {
  int rank = 0;
  std::optional<std::uint64_t> steps{};         // unset: it does not count them
  std::optional<std::uint64_t> memory_bytes{};  // resident, of its first process
  std::vector<StepSample> samples{};            // the oldest first
};

// The state of a process that runs workers.
struct NodeStatus {
  int workers_running = 0;
  std::vector<WorkerSteps> steps{};     // of the workers that count them
  std::vector<WorkerStatus> workers{};  // those that live, by rank
  std::vector<StageStatus> stages{};
  std::uint64_t replica_differences = 0;
  StoreStatus store{};
};

struct StatusReport {
  std::string program;
  std::string hostname;
  WallTime started{};
  WallTime now{};
  std::string unhealthy{};  // why; empty: healthy
  bool is_leader = false;   // the rendezvous is in this process
  std::optional<NodeStatus> node{};
  std::vector<JobStatus> jobs{};
};

}  // namespace ddprun::http
