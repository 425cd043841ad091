// --fold: what several ranks say alike within a short while is shown once, "[ranks 1-7] text". Each
// rank's own lines stay in order; a line of one rank alone looks as without folding. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/core/clock.h"

namespace ddprun::agent {

// How long a line waits for its like: ranks that do the same are some milliseconds apart, and a
// person does not notice the delay.
inline constexpr std::chrono::milliseconds kFoldWindow{100};
// Memory of what is held back; beyond it the oldest lines are shown as they are.
inline constexpr std::size_t kFoldBytes = std::size_t{1} << 20;
// What a line costs beside its text: its entry with prefix and ranks, and its place among the ids.
// Without it empty lines would be held back without bound.
inline constexpr std::size_t kFoldLineBytes = 256;

// A stream of a worker as the console shows it.
struct LineSource {
  int rank = 0;  // global
  std::string prefix;
};

class LineFolder {
 public:
  // `ranks`: of this node; a line that all of them have said waits no longer.
  explicit LineFolder(std::size_t ranks) : ranks_(ranks) {}

  void take(const LineSource& source, std::string_view line, Time now);
  // Appends what need not wait any longer to `out`, each line with its prefix and newline.
  void append_due(std::string& out, Time now);
  // Time::max(): nothing waits.
  Time look_again_at() const;

 private:
  struct Entry {
    std::string text;
    std::string prefix;  // of the first rank
    std::vector<int> ranks;
    Time since;
    std::size_t hash;  // of the text
  };
  Entry* find_like(int rank, std::string_view line, std::size_t hash);
  void append_oldest(std::string& out);

  std::size_t ranks_;
  std::deque<Entry> waiting_;   // in order of their first appearance
  std::uint64_t first_id_ = 0;  // of waiting_.front(); ids count all entries ever made
  std::size_t waiting_bytes_ = 0;
  std::set<std::pair<std::size_t, std::uint64_t>> ids_;  // of each hash, in order
  std::unordered_map<int, std::uint64_t> next_id_of_;  // one more than the id of a rank's last line
};

}  // namespace ddprun::agent
