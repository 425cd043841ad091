// The desync report of ranks that cannot go on together. A rank that waits for long posts its
// report: what it waits in, and its last operations. It compares that with the reports of others.
// All ranks call the operations in the same order. So collective operations of one sequence number
// must be alike. If they are not, no waiting helps. report_of(), desync_report() and absent_from()
// are pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/core/desync_board.h"
#include "worker/collective/core/operation_ring.h"

namespace ddprun::worker {

// The report of a rank about itself.
struct RankReport {
  enum class State : std::uint8_t { kRuns, kWaits, kEnded };

  int rank = 0;
  State state = State::kRuns;
  std::uint32_t look = 0;       // counts up with each report: a rank that still waits posts again
  Operation waits_in{};         // kWaits: its oldest operation that is not done
  int peer = -1;                // of a transfer that it waits in
  std::vector<Operation> last;  // its last collective operations, oldest first

  // The sequence number of its last collective operation; 0: none.
  std::uint32_t latest() const { return last.empty() ? 0 : last.back().sequence; }
};

// A report has so many operations. Ranks that have parted know it after a few.
inline constexpr std::size_t kReportedOperations = 16;

// Returns the report of a rank that runs.
RankReport report_of(const OperationRing& ring, int rank);

// For the board. Nothing if the text is of another version, or of no rank.
std::string to_text(const RankReport& report);
std::optional<RankReport> report_from(int rank, std::string_view text);

// Says why `mine`, which waits, can never go on. Nothing if the others may just be late. `others`:
// what they say now. `before`: what they said at an earlier look, since when `mine` waits in the
// same operation. "rank 0 is in barrier (operation 7), rank 1 in sum of 4096 bytes (operation 7):
// …".
std::optional<std::string> desync_report(const RankReport& mine,
                                         const std::vector<RankReport>& others,
                                         const std::vector<RankReport>& before);

// Those that were not seen in the collective operation that `mine` waits in. An example: "rank 1
// was not seen in it (last in sum of 4096 bytes (operation 6))". Empty if all were.
std::string absent_from(const RankReport& mine, const std::vector<RankReport>& others);

// Posts and compares, at growing distances. Not thread-safe. After an error of the board it does
// nothing more.
class DesyncLooks {
 public:
  using Clock = std::chrono::steady_clock;

  // A longer wait is worth a look: most waits are over by then.
  static constexpr std::chrono::milliseconds kFirstLook{500};

  DesyncLooks(std::unique_ptr<DesyncBoard> board, int rank, int ranks);

  // Returns whether it is time for look(): this operation waits since `since`.
  bool due(std::uint32_t operation, Clock::time_point since, Clock::time_point now);

  // The rank waits, and its report says in what. The desync report, if there is one. Blocks for the
  // board.
  std::optional<std::string> look(const RankReport& mine);
  // At the deadline: absent_from() of all ranks.
  std::string absent(const RankReport& mine);

  // The rank waits no longer; or it has ended its collective. Says so where that is not known.
  void go_on(RankReport mine);
  bool says_it_waits() const { return waits_; }
  void leave(RankReport mine);

 private:
  bool post(RankReport report);
  std::vector<RankReport> read(const std::vector<int>& ranks);

  std::unique_ptr<DesyncBoard> board_;  // null: it has failed
  std::vector<int> looked_at_;          // ranks
  std::vector<int> all_;                // other ranks
  std::vector<RankReport> before_;      // at the last look at the same operation
  std::uint32_t operation_ = 0;         // that the looks are at
  Clock::time_point next_{};
  std::chrono::milliseconds distance_{};
  std::uint32_t looks_ = 0;
  bool waits_ = false;  // as the others know
};

}  // namespace ddprun::worker
