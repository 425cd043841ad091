#include "worker/collective/core/desync_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "worker/collective/core/reached.h"

namespace ddprun::worker {
namespace {

// Between looks. Each rank that waits reads so many others, so that the store has little work.
constexpr std::chrono::milliseconds kFirstDistance{200};
constexpr std::chrono::milliseconds kLongestDistance{5'000};
constexpr int kLookedAtMax = 64;

// A message names so many ranks.
constexpr std::size_t kNamedMax = 8;

// How far back a report looks for collective operations among transfers.
constexpr std::uint32_t kSearchedOperations = 64;

constexpr int kVersion = 2;

// Gathers may bring another number of bytes on each rank.
bool alike(const Operation& a, const Operation& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == OperationKind::kGather || a.kind == OperationKind::kBarrier) return true;
  return a.bytes == b.bytes && a.dtype == b.dtype && a.parts == b.parts;
}

std::string both(const Operation& mine, int rank, const Operation& theirs, int other) {
  const bool swap = other < rank;
  return fmt::format(
      "rank {} is in {}, rank {} in {}: they do different things, and none of them can go on",
      std::min(rank, other), describe(swap ? theirs : mine), std::max(rank, other),
      describe(swap ? mine : theirs));
}

// The first operation that both know and that is not the same.
std::optional<std::string> parted(const RankReport& mine, const RankReport& theirs) {
  for (const Operation& operation : mine.last) {
    const auto same = std::ranges::find(theirs.last, operation.sequence, &Operation::sequence);
    if (same == theirs.last.end() || alike(operation, *same)) continue;
    return both(operation, mine.rank, *same, theirs.rank);
  }
  return std::nullopt;
}

bool complementary(OperationKind a, OperationKind b) {
  return is_transfer(a) && is_transfer(b) && a != b;
}

// A rank waits in a transfer with one that waits for it in turn, in something else.
bool wait_for_each_other(const RankReport& sender, const RankReport& other) {
  if (!is_transfer(sender.waits_in.kind) || sender.peer != other.rank) return false;
  if (is_transfer(other.waits_in.kind))
    return other.peer == sender.rank && !complementary(sender.waits_in.kind, other.waits_in.kind);
  return !reached(sender.latest(), other.waits_in.sequence);
}

// It waited in this at both looks, and so all the time between.
bool still_waits(const RankReport& now, const std::vector<RankReport>& before) {
  const auto same = std::ranges::find(before, now.rank, &RankReport::rank);
  return same != before.end() && now.state == RankReport::State::kWaits &&
         same->state == RankReport::State::kWaits && same->look != now.look &&
         same->waits_in.number == now.waits_in.number;
}

void write(std::ostream& text, const Operation& operation) {
  text << ' ' << operation.number << ' ' << operation.sequence << ' '
       << static_cast<int>(operation.kind) << ' ' << static_cast<int>(operation.dtype) << ' '
       << operation.bytes << ' ' << operation.parts;
}

bool read(std::istream& text, Operation& operation) {
  int kind = 0;
  int dtype = 0;
  text >> operation.number >> operation.sequence >> kind >> dtype >> operation.bytes >>
      operation.parts;
  if (!text || kind < 0 || kind > static_cast<int>(kLastOperationKind) || dtype < 0 ||
      dtype > static_cast<int>(Dtype::kUInt8))
    return false;
  operation.kind = static_cast<OperationKind>(kind);
  operation.dtype = static_cast<Dtype>(dtype);
  return true;
}

}  // namespace

RankReport report_of(const OperationRing& ring, int rank) {
  RankReport report;
  report.rank = rank;
  const std::uint32_t latest = ring.latest();
  for (std::uint32_t back = 0;
       back < kSearchedOperations && report.last.size() < kReportedOperations; ++back) {
    const auto found = ring.find(latest - back);
    if (found && !is_transfer(found->kind)) report.last.push_back(*found);
  }
  std::ranges::reverse(report.last);
  return report;
}

std::string to_text(const RankReport& report) {
  std::ostringstream text;
  text << kVersion << ' ' << static_cast<int>(report.state) << ' ' << report.look << ' '
       << report.peer << ' ' << report.last.size();
  write(text, report.waits_in);
  for (const Operation& operation : report.last) write(text, operation);
  return text.str();
}

std::optional<RankReport> report_from(int rank, std::string_view posted) {
  std::istringstream text{std::string(posted)};
  RankReport report;
  report.rank = rank;
  int version = 0;
  int state = 0;
  std::size_t count = 0;
  text >> version >> state >> report.look >> report.peer >> count;
  const bool known = text && version == kVersion && state >= 0 &&
                     state <= static_cast<int>(RankReport::State::kEnded) &&
                     count <= kReportedOperations;
  if (!known || !read(text, report.waits_in)) return std::nullopt;
  report.state = static_cast<RankReport::State>(state);
  report.last.resize(count);
  for (Operation& operation : report.last) {
    if (!read(text, operation)) return std::nullopt;
  }
  return report;
}

std::optional<std::string> desync_report(const RankReport& mine,
                                         const std::vector<RankReport>& others,
                                         const std::vector<RankReport>& before) {
  for (const RankReport& theirs : others) {
    if (auto found = parted(mine, theirs)) return found;
    const bool collective = !is_transfer(mine.waits_in.kind);
    if (collective && theirs.state == RankReport::State::kEnded &&
        !reached(theirs.latest(), mine.waits_in.sequence)) {
      return fmt::format("rank {} waits in {}, and rank {} has ended: its last operation was {}",
                         mine.rank, describe(mine.waits_in), theirs.rank,
                         theirs.last.empty() ? "none" : describe(theirs.last.back()));
    }
    if (still_waits(theirs, before) &&
        (wait_for_each_other(mine, theirs) || wait_for_each_other(theirs, mine)))
      return both(mine.waits_in, mine.rank, theirs.waits_in, theirs.rank);
  }
  return std::nullopt;
}

std::string absent_from(const RankReport& mine, const std::vector<RankReport>& others) {
  if (is_transfer(mine.waits_in.kind)) return {};
  std::string text;
  std::size_t absent = 0;
  for (const RankReport& theirs : others) {
    if (reached(theirs.latest(), mine.waits_in.sequence)) continue;
    if (++absent > kNamedMax) continue;
    text += fmt::format(
        "{}rank {} was not seen in it ({})", text.empty() ? "" : ", ", theirs.rank,
        theirs.last.empty() ? "nor in any other" : "last in " + describe(theirs.last.back()));
  }
  if (absent > kNamedMax) text += fmt::format(", and {} more ranks", absent - kNamedMax);
  return text;
}

// Each rank looks at those behind it: where two ranks do different things, two neighbours do.
DesyncLooks::DesyncLooks(std::unique_ptr<DesyncBoard> board, int rank, int ranks)
    : board_(std::move(board)) {
  for (int step = 1; step < ranks; ++step) {
    all_.push_back((rank + step) % ranks);
    if (step <= kLookedAtMax) looked_at_.push_back(all_.back());
  }
}

bool DesyncLooks::due(std::uint32_t operation, Clock::time_point since, Clock::time_point now) {
  if (board_ == nullptr || all_.empty()) return false;
  if (std::exchange(operation_, operation) != operation) {
    next_ = since + kFirstLook;
    distance_ = kFirstDistance;
    before_.clear();
  }
  return now >= next_;
}

std::optional<std::string> DesyncLooks::look(const RankReport& mine) {
  waits_ = true;
  if (!post(mine)) return std::nullopt;
  auto others = read(looked_at_);
  auto found = desync_report(mine, others, before_);
  before_ = std::move(others);
  next_ = Clock::now() + distance_;
  distance_ = std::min(distance_ * 2, kLongestDistance);
  return found;
}

std::string DesyncLooks::absent(const RankReport& mine) {
  return board_ == nullptr ? "" : absent_from(mine, read(all_));
}

void DesyncLooks::go_on(RankReport mine) {
  if (std::exchange(waits_, false)) post(std::move(mine));
}

void DesyncLooks::leave(RankReport mine) {
  mine.state = RankReport::State::kEnded;
  post(std::move(mine));
}

bool DesyncLooks::post(RankReport report) {
  if (board_ == nullptr) return false;
  report.look = ++looks_;
  const auto posted = board_->post(to_text(report));
  if (posted) return true;
  log::debug(
      fmt::format("ranks that wait cannot compare what they do: {}", posted.error().message()));
  board_.reset();
  return false;
}

// A rank whose text we cannot read has said nothing.
std::vector<RankReport> DesyncLooks::read(const std::vector<int>& ranks) {
  std::vector<RankReport> reports;
  const auto texts = board_->read(ranks);
  for (std::size_t i = 0; texts && i < texts->size(); ++i)
    reports.push_back(report_from(ranks[i], (*texts)[i]).value_or(RankReport{.rank = ranks[i]}));
  return reports;
}

}  // namespace ddprun::worker
