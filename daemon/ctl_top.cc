#include "daemon/ctl_top.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/duration.h"
#include "base/shown_text.h"
#include "base/text_table.h"
#include "daemon/daemon_status.h"
#include "rendezvous/control/pages/job_periods.h"
#include "rendezvous/control/pages/page_text.h"
#include "rendezvous/control/pages/rank_states.h"

namespace ddprun::daemon {
namespace {

using http::WallTime;
using rendezvous::JobSnapshot;
using rendezvous::RankProgress;

constexpr std::size_t kMostNodeLines = 64;
constexpr std::size_t kMostRankLines = 64;
constexpr std::size_t kLabel = 24;  // left of a node's cells, and of the timeline
constexpr std::size_t kFewestColumns = 40;
constexpr std::size_t kMostEvents = 5;

// The first `columns` characters of a line.
std::string cut(std::string_view line, std::size_t columns) {
  std::string text;
  for (std::size_t i = 0; !line.empty() && i < columns; ++i) {
    const std::size_t length = std::max<std::size_t>(utf8_sequence(line), 1);
    text += line.substr(0, length);
    line.remove_prefix(length);
  }
  return text;
}

std::string padded(std::string_view text, std::size_t columns) {
  std::string line = cut(text, columns);
  std::size_t used = 0;
  for (const char byte : line) used += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  return line + std::string(columns - used, ' ');
}

// SGR codes: red for ranks that stand still, yellow, green, blue.
std::string_view colour_of(std::string_view css_class) {
  if (css_class == "stuck") return "\x1b[31;1m";
  if (css_class == "held" || css_class == "end") return "\x1b[33m";
  if (css_class == "run") return "\x1b[32m";
  return css_class == "ok" ? "\x1b[34m" : "";
}

class TopLines {
 public:
  TopLines(const TopScreen& screen, WallTime now)
      : screen_(screen), columns_(std::max(screen.columns, kFewestColumns)), now_(now) {}

  void job(const JobSnapshot& snapshot, const TopBefore& before) {
    const http::JobStatus job = job_status(snapshot);
    if (!lines_.empty()) line("");
    head(snapshot, job);
    cells(job);
    groups(job);
    timeline(job);
    steps(snapshot, before);
    events(snapshot);
  }

  std::string text() {
    std::string text;
    const std::size_t rows =
        screen_.rows == 0 ? lines_.size() : std::max<std::size_t>(screen_.rows, 3);
    const bool fits = lines_.size() <= rows;
    const std::size_t count = fits ? lines_.size() : rows - 1;
    for (std::size_t i = 0; i < count; ++i) text += lines_[i] + '\n';
    if (!fits) text += fmt::format("… {} more lines\n", lines_.size() - count);
    return text;
  }

 private:
  void line(std::string_view text) {
    std::string shown = cut(text, columns_);
    shown.resize(shown.find_last_not_of(' ') + 1);
    lines_.push_back(std::move(shown));
  }

  void table(const std::vector<TextRow>& rows) {
    std::string text = text_table(rows);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      line(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void head(const JobSnapshot& snapshot, const http::JobStatus& job) {
    line(fmt::format("{}: {}, round {}, {}, {}, {} of {} restarts spent; {}", shown_text(job.id),
                     job.state, job.round, http::counted(job.seats.size(), "node"),
                     http::counted(static_cast<std::size_t>(job.world_size), "worker"),
                     job.restarts, job.max_restarts, http::when(now_)));
    if (!snapshot.waits_for.empty()) line("waits: " + shown_text(snapshot.waits_for));
    if (!snapshot.end.empty()) line("end: " + shown_text(snapshot.end));
    if (!job.standstill.empty()) line("STANDS STILL: " + shown_text(job.standstill));
  }

  std::string sign(http::StateStyle style) const {
    const std::string_view colour = screen_.has_colours ? colour_of(style.css_class) : "";
    return fmt::format("{}{}{}", colour, style.sign, colour.empty() ? "" : "\x1b[0m");
  }

  // A sign for each rank; a wide node has several lines.
  void cells(const http::JobStatus& job) {
    if (job.seats.size() > kMostNodeLines) return;
    for (const http::SeatStatus& seat : job.seats) {
      std::string label = seat.node_rank < 0 ? "-" : fmt::format("{}", seat.node_rank);
      label += ' ' + shown_text(seat.hostname, kLabel);
      const int in_a_line = static_cast<int>(columns_ - kLabel - 1);
      const int most = in_a_line * 4;
      std::string text = padded(label, kLabel) + ' ';
      for (int i = 0; i < std::min(seat.workers, most); ++i) {
        if (i > 0 && i % in_a_line == 0) {
          lines_.push_back(text);
          text = std::string(kLabel + 1, ' ');
        }
        const int rank = seat.first_rank < 0 ? -1 : seat.first_rank + i;
        text += sign(http::style_of(http::rank_state(job, seat, rank)));
      }
      lines_.push_back(text);
    }
  }

  void groups(const http::JobStatus& job) {
    for (const http::StateGroup& group : http::groups_by_state(job)) {
      const std::string ranges = http::ranges_text(group);
      const std::string text =
          fmt::format(" {}: {}, {}{}", shown_text(group.state), http::counted(group.nodes, "node"),
                      http::counted(static_cast<std::size_t>(group.ranks), "worker"),
                      ranges.empty() ? "" : " (" + ranges + ")");
      lines_.push_back(sign(http::style_of(group.state)) + cut(text, columns_ - 1));
    }
  }

  // ---- timeline ----

  std::size_t place(WallTime time, WallTime begin) const {
    const auto width = static_cast<double>(columns_ - kLabel - 2);
    const double part = in_seconds(time - begin) / std::max(in_seconds(now_ - begin), 1.0);
    return static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * width);
  }

  // `sign`: of ASCII.
  static void fill(std::string& lane, std::size_t from, std::size_t to, char sign) {
    for (std::size_t i = from; i <= to; ++i) lane.at(i) = sign;
  }

  void timeline(const http::JobStatus& job) {
    if (job.periods.empty() && job.reasons.empty()) return;
    WallTime begin = now_;
    for (const http::PeriodStatus& one : job.periods) begin = std::min(begin, one.begin);
    for (const http::ReasonStatus& one : job.reasons) begin = std::min(begin, one.when);
    const std::string empty(columns_ - kLabel - 1, ' ');
    std::string rounds = empty;
    std::string incidents = empty;
    std::string standstills = empty;
    for (const http::PeriodStatus& one : job.periods)
      fill(one.is_round ? rounds : standstills, place(one.begin, begin),
           place(one.end.value_or(now_), begin),
           one.is_round ? static_cast<char>('0' + one.round % 10) : '!');
    for (const http::ReasonStatus& one : job.reasons)
      fill(incidents, place(one.when, begin), place(one.when, begin), '^');
    line(padded("rounds", kLabel) + ' ' + rounds);
    line(padded("incidents", kLabel) + ' ' + incidents);
    line(padded("standstills", kLabel) + ' ' + standstills);
    line(padded(fmt::format("since {}", http::time_of_day(begin)), kLabel) + " for " +
         http::for_how_long(now_ - begin));
  }

  // ---- steps ----

  static const RankProgress* find(const TopBefore& before, const JobSnapshot& job, int rank) {
    for (const JobSnapshot& one : before.jobs) {
      if (one.job != job.job || one.pid != job.pid || one.round != job.round) continue;
      const auto found = std::ranges::find(one.ranks, rank, &RankProgress::rank);
      if (found != one.ranks.end()) return &*found;
    }
    return nullptr;
  }

  static std::string rate(const RankProgress& rank, const RankProgress* before, double seconds) {
    if (before == nullptr || rank.steps < before->steps || seconds <= 0) return "-";
    return fmt::format("{:.3g}", static_cast<double>(rank.steps - before->steps) / seconds);
  }

  // "50.1, 61.7 ms"
  static std::string percentiles(std::int64_t p50_us, std::int64_t p99_us) {
    constexpr double kMilli = 1000;
    if (p99_us <= 0) return "-";
    return fmt::format("{:.1f}, {:.1f} ms", static_cast<double>(p50_us) / kMilli,
                       static_cast<double>(p99_us) / kMilli);
  }

  void steps(const JobSnapshot& job, const TopBefore& before) {
    if (job.ranks.empty()) return;
    std::vector<TextRow> rows = {
        {"RANK", "STEPS", "A SECOND", "LAST STEP", "STEP P50, P99", "OWN P50, P99", "MEMORY"}};
    for (const RankProgress& rank : job.ranks) {
      if (rows.size() > kMostRankLines) break;
      const RankProgress* const earlier = find(before, job, rank.rank);
      rows.push_back(
          {fmt::format("{}", rank.rank), rank.steps < 0 ? "-" : fmt::format("{}", rank.steps),
           rank.steps < 0 ? "-" : rate(rank, earlier, in_seconds(before.age)),
           rank.quiet_ms < 0
               ? "-"
               : fmt::format("{:.1f} s ago", static_cast<double>(rank.quiet_ms) / 1000),
           percentiles(rank.spread.step_p50_us, rank.spread.step_p99_us),
           percentiles(rank.spread.own_p50_us, rank.spread.own_p99_us),
           rank.memory_bytes < 0 ? "-" : fmt::format("{} MiB", rank.memory_bytes >> 20)});
    }
    table(rows);
    if (job.ranks.size() >= rows.size())
      line(fmt::format("{} more ranks", job.ranks.size() - rows.size() + 1));
  }

  // The newest first.
  void events(const JobSnapshot& job) {
    std::size_t left = kMostEvents;
    for (auto one = job.incidents.rbegin(); one != job.incidents.rend() && left > 0; ++one, --left)
      line(fmt::format("{} {}: {}", http::time_of_day(http::wall_time(one->unix_ms)),
                       rendezvous::name_of(one->kind), shown_text(one->text)));
  }

  const TopScreen screen_;
  const std::size_t columns_;
  const WallTime now_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string top_text(const std::vector<JobSnapshot>& jobs, const TopBefore& before,
                     const TopScreen& screen, WallTime now) {
  if (jobs.empty()) return "no job is there\n";
  TopLines drawn(screen, now);
  for (const JobSnapshot& job : jobs) drawn.job(job, before);
  return drawn.text();
}

}  // namespace ddprun::daemon
