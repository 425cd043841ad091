#include "daemon/job_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddprun::daemon {
namespace {

constexpr std::size_t kMaxIdBytes = 255;

}  // namespace

std::optional<Error> JobTable::validate(const std::string& id, const rendezvous::NodeSpec& spec,
                                        bool is_limited) const {
  if (id.empty() || id.size() > kMaxIdBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: an rdzv_id of {} bytes: expected 1 to {}", id.size(),
                             kMaxIdBytes));
  const int unit = spec.settings.node_unit;
  const bool fits = spec.min_nodes >= 1 && spec.min_nodes <= spec.max_nodes &&
                    spec.max_nodes <= rendezvous::kMaxNodes && unit >= 1 &&
                    spec.min_nodes % unit == 0 && spec.max_nodes % unit == 0;
  if (!fits)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: no job can have {} to {} nodes in units of {}",
                             spec.min_nodes, spec.max_nodes, unit));
  if (is_limited && spec.max_nodes > limits_.nodes_per_job)
    return Error(ErrorCode::kLimit,
                 fmt::format("rendezvous: --nnodes={}:{} is more than this ddprund allows "
                             "(--max-nodes-per-job={})",
                             spec.min_nodes, spec.max_nodes, limits_.nodes_per_job));
  return std::nullopt;
}

std::optional<Error> JobTable::too_much(std::uint64_t memory_bytes) const {
  if (live() >= limits_.jobs)
    return Error(
        ErrorCode::kLimit,
        fmt::format("rendezvous: {} jobs are here already (--max-jobs={})", live(), limits_.jobs));
  if (limits_.memory_bytes != 0 && memory_bytes > limits_.memory_bytes)
    return Error(ErrorCode::kLimit,
                 fmt::format("rendezvous: ddprund uses {} MiB of memory already (--max-memory={})",
                             memory_bytes >> 20, limits_.memory_bytes >> 20));
  return std::nullopt;
}

Result<JobTable::Admission> JobTable::admit(const std::string& id, const rendezvous::NodeSpec& spec,
                                            std::uint64_t memory_bytes, bool comes_back) {
  const auto known = find(id);
  const bool is_inherited = awaited_.contains(id) ||
                            (known && jobs_.at(*known).is_inherited && !jobs_.at(*known).ended_at);
  const bool is_limited = !(comes_back && is_inherited);
  if (auto error = validate(id, spec, is_limited)) return *std::move(error);
  if (known && !jobs_.at(*known).ended_at) {
    Entry& entry = jobs_.at(*known);
    // Spares too.
    if (is_limited && entry.members >= limits_.nodes_per_job)
      return Error(ErrorCode::kLimit,
                   fmt::format("rendezvous: job {} has {} nodes already (--max-nodes-per-job={})",
                               id, entry.members, limits_.nodes_per_job));
    entry.alone_since.reset();
    return Admission{*known, false};
  }
  const bool was_awaited = awaited_.erase(id) > 0;
  if (auto error = was_awaited ? std::nullopt : too_much(memory_bytes)) return *std::move(error);
  jobs_.emplace(++last_, Entry{.id = id, .is_inherited = was_awaited});
  by_id_[id] = last_;
  return Admission{last_, true};
}

void JobTable::ended(JobNumber job, Time now) {
  Entry& entry = jobs_.at(job);
  if (entry.ended_at) return;
  entry.ended_at = now;
  ++ended_;
}

void JobTable::left_alone(JobNumber job, Time now) {
  Entry& entry = jobs_.at(job);
  entry.members = 0;
  entry.alone_since = now;
}

// Copies, since a moved map keeps its blocks.
void JobTable::compact() {
  jobs_ = std::map(std::as_const(jobs_));
  by_id_ = std::map(std::as_const(by_id_));
}

void JobTable::clear() {
  jobs_.clear();
  by_id_.clear();
  awaited_.clear();
  ended_ = 0;
}

// A later job has its id, or had it.
bool JobTable::is_replaced(JobNumber job, const Entry& entry) const {
  return find(entry.id) != job;
}

JobTable::Due JobTable::due(Time now) {
  Due due;
  int surplus = ended_ - limits_.ended_jobs;
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto one = next++;
    const Entry& entry = one->second;
    if (!entry.ended_at && entry.alone_since && now >= *entry.alone_since + limits_.alone)
      due.give_up.push_back(one->first);
    // Not before its last session has ended.
    if (!entry.ended_at || !entry.alone_since) continue;
    const bool replaced = is_replaced(one->first, entry);
    const bool is_old = now >= *entry.ended_at + limits_.forget_after;
    if (!is_old && !replaced && surplus <= 0) continue;
    due.forget.push_back(one->first);
    if (!replaced) by_id_.erase(entry.id);
    --ended_;
    --surplus;
    jobs_.erase(one);
  }
  return due;
}

Time JobTable::look_again_at() const {
  Time at = Time::max();
  int surplus = ended_ - limits_.ended_jobs;
  for (const auto& [number, entry] : jobs_) {
    if (!entry.alone_since) continue;
    if (!entry.ended_at) {
      at = std::min(at, *entry.alone_since + limits_.alone);
    } else if (is_replaced(number, entry) || surplus-- > 0) {
      return Time::min();
    } else {
      at = std::min(at, *entry.ended_at + limits_.forget_after);
    }
  }
  return at;
}

std::optional<JobNumber> JobTable::find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<JobNumber> JobTable::shown() const {
  std::vector<JobNumber> numbers;
  for (const auto& [id, number] : by_id_) numbers.push_back(number);
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace ddprun::daemon
