// A job's run, made of what its nodes have written. It says where the time went, what broke the
// rounds, and who was to blame. Nodes' clocks differ. All have heard of a round at the same moment,
// so the beginnings of their rounds align them. Pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/history.h"

namespace ddprun::launcher {

// Seconds of one kind, of all rounds.
struct TimeShare {
  std::string what;  // "steps", "start", "a worker failed", …
  double seconds = 0;
  int times = 0;
};

struct ReportedRound {
  RoundFact fact{};         // its steps are those of the node with the fewest
  std::string why_ended{};  // for people; empty: it runs, or nobody has written it
  int present = 0;          // nodes whose folders are here
};

struct ReportedNode {
  std::string hostname{};
  std::vector<std::string> folders{};  // of its ddpruns
  int rounds = 0;
  int blamed = 0;          // for the end of so many rounds; 2: it recurs
  double clock_ahead = 0;  // of the first node's, in seconds
  // When its rounds were, by the first node's clock.
  struct Span {
    std::int64_t round = 0;
    double began = 0;
    double ended = 0;
    bool broke = false;
    double first_step = 0;  // 0: it counts none
    double last_step = 0;
  };
  std::vector<Span> spans{};
};

struct RunReport {
  std::string run_id{};
  double began = 0;
  double ended = 0;  // the last sign, if no end was written
  bool has_end = false;
  bool succeeded = false;
  std::string end_text{};         // how it ended
  std::int64_t steps = 0;         // of all rounds
  double step_seconds = 0;        // of them
  std::vector<TimeShare> time{};  // all of the run, the largest first
  std::vector<ReportedRound> rounds{};
  std::vector<ReportedNode> nodes{};  // by hostname

  double seconds() const { return ended - began; }
  bool counts_steps() const { return steps > 0; }
  // The share of the run in steps. 0 also if nobody counts steps.
  double effective() const { return seconds() > 0 ? step_seconds / seconds() : 0; }
};

// `nodes`: of one job, each with a round at least.
RunReport make_report(std::vector<NodeHistory> nodes);

// "a worker failed" of "worker_failed"; for people.
std::string words_of_kind(const std::string& kind);

}  // namespace ddprun::launcher
