// --fold: if several ranks write the same line within a short time, it is shown once, as
// "[ranks 1-7] text". The lines of one rank stay in their order. A line that only one rank writes
// looks as it does without folding. It has no timer: the caller asks look_again_at(). Pure; loop's
// thread; owned by LineFormatter.
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

// How long a line waits for equal lines of other ranks. Ranks that do the same work are some
// milliseconds apart, and a person does not notice this delay.
inline constexpr std::chrono::milliseconds kFoldWindow{100};
// Memory for the lines that wait. If they need more, the oldest are shown before their time, with
// the ranks that have written them so far.
inline constexpr std::size_t kFoldBytes = std::size_t{1} << 20;
// The cost of a line besides its text: its entry with prefix and ranks, and its place among the
// ids. If this were not counted, empty lines would cost nothing and wait without limit.
inline constexpr std::size_t kFoldLineBytes = 256;

// The worker that a line is of, and the text before it on the console.
struct LineSource {
  int rank = 0;  // global
  std::string prefix;
};

class LineFolder {
 public:
  // `ranks` is the number of ranks whose lines come here. A line that all of them have written need
  // not wait any longer.
  explicit LineFolder(std::size_t ranks) : ranks_(ranks) {}

  // Takes one line, without its newline. Call append_due() afterwards.
  void take(const LineSource& source, std::string_view line, Time now);
  // Appends to `out` the lines that need not wait any longer, each with its prefix and newline.
  // With Time::max() it appends all.
  void append_due(std::string& out, Time now);
  // Returns when to call append_due() next. Time::max(): nothing waits.
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
  std::deque<Entry> waiting_;   // in the order in which the first rank wrote them
  std::uint64_t first_id_ = 0;  // of waiting_.front(); ids count all entries ever made
  std::size_t waiting_bytes_ = 0;
  // (hash, id) of each waiting entry. So the entries of one hash stand together, the oldest first.
  std::set<std::pair<std::size_t, std::uint64_t>> ids_;
  // One more than the id of each rank's last line, by rank.
  std::unordered_map<int, std::uint64_t> next_id_of_;
};

}  // namespace ddprun::agent
