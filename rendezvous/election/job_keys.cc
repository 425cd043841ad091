#include "rendezvous/election/job_keys.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/numbers.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

// The first word of each value. A ddprun that writes other words has another number.
constexpr std::string_view kLeaderVersion = "v2";
constexpr std::string_view kRecordVersion = "v3";
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMostServed = 1'000'000;
// The longest times of restart rules; more milliseconds would overflow a clock's nanoseconds.
constexpr std::int64_t kMostMs = 1'000'000'000'000;

constexpr std::array kStates = {
    std::pair{RecordedJob::State::kRuns, std::string_view("runs")},
    std::pair{RecordedJob::State::kSucceeded, std::string_view("succeeded")},
    std::pair{RecordedJob::State::kFailed, std::string_view("failed")}};

// Reads the words of a value one after another. A word that is not as it must be makes all wrong.
class Words {
 public:
  Words(std::string_view text, std::string_view version) : rest_(text) {
    is_good_ = word() == version;
  }

  std::string_view word() {
    const auto end = rest_.find(' ');
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (found.empty()) is_good_ = false;
    return found;
  }
  // `name=number`, from 0 to `most`.
  std::int64_t number(std::string_view name, std::int64_t most) {
    std::string_view text = word();
    if (!text.starts_with(name) || text.substr(name.size(), 1) != "=") return fail();
    text.remove_prefix(name.size() + 1);
    const auto value = parse_whole<std::int64_t>(text);
    return value && *value >= 0 && *value <= most ? *value : fail();
  }
  milliseconds time(std::string_view name) { return milliseconds(number(name, kMostMs)); }
  // Returns the rest of the text, blanks too.
  std::string rest() { return std::string(std::exchange(rest_, {})); }
  bool is_good() const { return is_good_; }

 private:
  std::int64_t fail() {
    is_good_ = false;
    return 0;
  }

  std::string_view rest_;
  bool is_good_ = true;
};

bool can_be(int min_nodes, int max_nodes, int unit) {
  if (max_nodes == 0) return min_nodes == 0 && unit == 0;
  return min_nodes >= 1 && min_nodes <= max_nodes && unit >= 1 && min_nodes % unit == 0 &&
         max_nodes % unit == 0;
}

Error no_sense(std::string_view what) {
  return {ErrorCode::kProtocol,
          fmt::format("rendezvous: what etcd has of {} makes no sense", what)};
}

// Whether a value is no longer than one may be, as it was read and when it is written again. A text
// that was read may lack the blank before an empty last word.
bool fits(std::string_view value, const auto& understood) {
  return value.size() <= kMaxValueBytes && encode(understood).size() <= kMaxValueBytes;
}

std::string_view text_of(RecordedJob::State state) {
  for (const auto& [one, text] : kStates)
    if (one == state) return text;
  return {};
}

std::optional<RecordedJob::State> state_of(std::string_view text) {
  for (const auto& [state, one] : kStates)
    if (one == text) return state;
  return std::nullopt;
}

}  // namespace

JobKeys job_keys(std::string_view prefix, std::string_view rdzv_id) {
  return {.leader = fmt::format("{}/{}/leader", prefix, rdzv_id),
          .record = fmt::format("{}/{}/record", prefix, rdzv_id)};
}

std::string group_prefix(std::string_view prefix) { return fmt::format("{}-daemons", prefix); }

// The leader's key as Election has it.
GroupKeys group_keys(std::string_view prefix, std::string_view group) {
  const std::string of_groups = group_prefix(prefix);
  return {.leader = job_keys(of_groups, group).leader,
          .records = fmt::format("{}/{}/jobs/", of_groups, group)};
}

std::string encode(const Leader& leader) {
  return fmt::format("{} {} port={} {}", kLeaderVersion, leader.address, leader.port,
                     leader.hostname);
}

Result<Leader> decode_leader(std::string_view value) {
  Words words(value, kLeaderVersion);
  Leader leader;
  leader.address = words.word();
  leader.port =
      static_cast<std::uint16_t>(words.number("port", std::numeric_limits<std::uint16_t>::max()));
  leader.hostname = words.rest();
  if (!words.is_good() || leader.port == 0 || !fits(value, leader)) return no_sense("the leader");
  return leader;
}

std::string encode(const RecordedJob& job) {
  const JobRecord& record = job.record;
  return fmt::format(
      "{} {} round={} restarts={} others={} leader_has_seat={} max_restarts={} window_ms={} "
      "backoff_ms={} backoff_max_ms={} min_nodes={} max_nodes={} node_unit={} served={} {}",
      kRecordVersion, text_of(job.state), record.round, record.restarts, record.others,
      record.leader_has_seat ? 1 : 0, record.rules.max_restarts, record.rules.window.count(),
      record.rules.backoff.count(), record.rules.backoff_max.count(), job.min_nodes, job.max_nodes,
      job.node_unit, job.served, record.leader);
}

Result<RecordedJob> decode_record(std::string_view value) {
  Words words(value, kRecordVersion);
  RecordedJob job;
  JobRecord& record = job.record;
  const auto state = state_of(words.word());
  job.state = state.value_or(RecordedJob::State::kRuns);
  record.round = words.number("round", kMost - 1);  // the next one has a number, too
  record.restarts = static_cast<int>(words.number("restarts", kMostInt - 1));
  record.others = static_cast<int>(words.number("others", kMaxNodes));
  record.leader_has_seat = words.number("leader_has_seat", 1) == 1;
  record.rules.max_restarts = static_cast<int>(words.number("max_restarts", kMostInt));
  record.rules.window = words.time("window_ms");
  record.rules.backoff = words.time("backoff_ms");
  record.rules.backoff_max = words.time("backoff_max_ms");
  job.min_nodes = static_cast<int>(words.number("min_nodes", kMaxNodes));
  job.max_nodes = static_cast<int>(words.number("max_nodes", kMaxNodes));
  job.node_unit = static_cast<int>(words.number("node_unit", kMaxNodes));
  job.served = static_cast<int>(words.number("served", kMostServed));
  record.leader = words.rest();
  const bool is_good = words.is_good() && can_be(job.min_nodes, job.max_nodes, job.node_unit);
  if (!is_good || !state || !fits(value, job)) return no_sense("the job");
  return job;
}

}  // namespace ddprun::rendezvous
