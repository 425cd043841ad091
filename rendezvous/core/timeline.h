// The last rounds and standstills of a job, with their times. A host keeps one of its job, and an
// agent one as it hears of them. Pure: the caller says when. Milliseconds since 1970.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

// So many periods of a job are kept.
inline constexpr std::size_t kMostPeriods = 32;

// They travel as numbers: new ones come last.
enum class PeriodKind { kRound, kStandstill };

struct Period {
  PeriodKind kind = PeriodKind::kRound;
  std::int64_t begin_ms = 0;
  std::int64_t end_ms = -1;  // -1: it lasts
  std::int64_t round = 0;
  int workers = 0;           // of a round
  std::string text{};        // of a standstill: why
  std::vector<int> ranks{};  // of a standstill that lasts: those to blame, global

  bool lasts() const { return end_ms < 0; }
  bool operator==(const Period&) const = default;
};

class Timeline {
 public:
  // The round before ends, if it lasts.
  void round_began(std::int64_t round, int workers, std::int64_t unix_ms);
  // Nothing if no round lasts. A standstill ends with its round.
  void round_ended(std::int64_t unix_ms);
  // One that lasts already gets the new text and ranks.
  void stands_still(const std::string& text, const std::vector<int>& ranks, std::int64_t unix_ms);
  void went_on(std::int64_t unix_ms);

  // In the order of their beginnings.
  const std::vector<Period>& periods() const { return periods_; }

 private:
  Period* lasting(PeriodKind kind);
  void add(Period period);
  void end(PeriodKind kind, std::int64_t unix_ms);

  std::vector<Period> periods_;
};

}  // namespace ddprun::rendezvous
