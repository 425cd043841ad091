// The rounds of one node, as it has written them: history.jsonl in the job's log folder
// (agent/report/round_history.h). A job may run still, or may have been killed: then the end is
// missing. Others may have written into the file, so nothing in it is trusted to be well formed.
// Times are seconds since 1970, by the node's own clock. Pure. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// The most of each that is kept of one node.
inline constexpr std::size_t kMostRounds = 10'000;
inline constexpr std::size_t kMostStandstills = 1'000;  // of a round
inline constexpr std::size_t kMostStragglers = 1'000;   // as well

struct StandstillFact {
  double time = 0;
  std::string sentence;
  // So long no rank had moved when steps went on; nothing: none followed.
  std::optional<double> went_on_after{};
};

// Ranks were slower than the others.
struct StragglerFact {
  double time = 0;
  std::string sentence;
};

// Why a round broke, or the job ended.
struct BreakFact {
  double time = 0;
  std::string kind;  // "worker_failed", "node_lost", "resize", "standstill"; of an end also others
  std::string text;
  std::string hostname;
  int rank = -1;        // -1: none is to blame
  std::string error{};  // the rank's own words: "ValueError: text"; empty: none are known
};

struct RoundFact {
  std::int64_t number = 0;
  double began = 0;
  double waited = 0;              // for it, before it began
  std::optional<double> ended{};  // the last worker of the node was gone
  int node_rank = 0;
  int nodes = 0;
  int first_rank = 0;
  int workers = 0;
  int world_size = 0;
  // The steps of the rank that has done the fewest. 0: none counts any.
  std::int64_t steps = 0;
  double first_step = 0;
  double last_step = 0;
  std::vector<StandstillFact> standstills{};
  std::vector<StragglerFact> stragglers{};
  std::optional<BreakFact> broke{};
};

struct NodeHistory {
  std::string folder{};
  std::string run_id{};
  std::string hostname{};
  std::vector<RoundFact> rounds{};  // by number
  std::optional<BreakFact> end{};   // kind "success" if the job ended well
  double last_sign = 0;             // the last time in the file
};

// Lines that say nothing known are skipped. The rounds are empty if no line is of use.
NodeHistory parse_history(std::string_view text);

}  // namespace ddprun::launcher
