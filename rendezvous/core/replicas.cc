#include "rendezvous/core/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/number_ranges.h"

namespace ddprun::rendezvous {
namespace {

// As in agent/standby/python/replicas.py. It is odd: one hash that differs changes the whole.
constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;

std::string rank_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", number_ranges(ranks, ", "));
}

std::int64_t cell_width(std::int64_t count) {
  constexpr auto kMost = static_cast<std::int64_t>(kMostReplicaCells);
  return std::max<std::int64_t>((count + kMost - 1) / kMost, 1);
}

// The ranks by what they have in one cell.
using Classes = std::map<std::uint64_t, std::vector<int>>;

Classes classes_in(const std::vector<RankTensors>& answers, std::size_t cell) {
  Classes classes;
  for (const RankTensors& one : answers)
    if (cell < one.cells.size()) classes[one.cells[cell]].push_back(one.rank);
  return classes;
}

// Null: there is none.
const std::vector<int>* majority(const Classes& classes, std::size_t ranks) {
  for (const auto& [hash, members] : classes)
    if (members.size() * 2 > ranks) return &members;
  return nullptr;
}

// "layer3.weight and momentum_buffer of layer3.weight"
std::string names_in(const std::vector<RankTensors>& answers,
                     const std::vector<std::size_t>& cells) {
  std::string text;
  for (const std::size_t cell : cells) {
    const auto knows = [cell](const RankTensors& one) { return cell < one.names.size(); };
    const auto named = std::ranges::find_if(answers, knows);
    if (named == answers.end()) break;
    text += (text.empty() ? "" : " and ") + named->names[cell];
  }
  return text.empty() ? "a tensor" : text;
}

std::vector<std::size_t> cells_that_differ(const std::vector<RankTensors>& answers) {
  std::vector<std::size_t> cells;
  for (std::size_t cell = 0; cell < kMostReplicaCells; ++cell)
    if (classes_in(answers, cell).size() > 1) cells.push_back(cell);
  return cells;
}

// " on node-b", or of all nodes that have one of them, "".
std::string place_of(const std::vector<RankTensors>& answers, const std::vector<int>& ranks) {
  std::set<std::string> hosts;
  for (const RankTensors& one : answers)
    if (std::ranges::binary_search(ranks, one.rank)) hosts.insert(one.hostname);
  constexpr std::size_t kMostHosts = 4;
  if (hosts.empty() || hosts.size() > kMostHosts || hosts.contains("")) return "";
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? " on " : ", ") + host;
  return text;
}

// Ranks that have the same wrong bits: a device, or the memory of their node, is likely.
std::string agreement(const Classes& classes, const std::vector<int>& wrong) {
  if (wrong.size() < 2) return "";
  for (const auto& [hash, members] : classes)
    if (members == wrong) return ", which agree with each other";
  return "";
}

}  // namespace

std::uint64_t folded(const std::vector<std::uint64_t>& hashes, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return hashes[begin];
  std::uint64_t total = 0;
  for (std::size_t at = begin; at < end; ++at) total = total * kFactor + hashes[at];
  return total;
}

std::vector<std::uint64_t> replica_cells(const std::vector<std::uint64_t>& hashes,
                                         std::int64_t first, std::int64_t count) {
  const auto all = static_cast<std::int64_t>(hashes.size());
  const std::int64_t begin = std::clamp<std::int64_t>(first, 0, all);
  const std::int64_t end = count <= 0 || count > all - begin ? all : begin + count;
  const std::int64_t width = cell_width(end - begin);
  std::vector<std::uint64_t> cells;
  for (std::int64_t at = begin; at < end; at += width)
    cells.push_back(folded(hashes, static_cast<std::size_t>(at),
                           static_cast<std::size_t>(std::min(at + width, end))));
  return cells;
}

ReplicaVerdict judge_replicas(const std::vector<RankTensors>& answers, std::int64_t step) {
  ReplicaVerdict verdict{.step = step};
  const std::vector<std::size_t> cells = cells_that_differ(answers);
  if (cells.empty()) return verdict;
  const Classes classes = classes_in(answers, cells.front());
  const std::vector<int>* const right = majority(classes, answers.size());
  const std::string what = fmt::format("{} since step {}", names_in(answers, cells), step);
  for (const RankTensors& one : answers)
    if (right == nullptr || !std::ranges::binary_search(*right, one.rank))
      verdict.ranks.push_back(one.rank);
  const std::string who = rank_text(verdict.ranks) + place_of(answers, verdict.ranks);
  verdict.sentence =
      right == nullptr ? fmt::format("{}: {}; no majority tells who is right", who, what)
                       : fmt::format("{}{}: {}; {} agree{}", who, agreement(classes, verdict.ranks),
                                     what, rank_text(*right), right->size() == 1 ? "s" : "");
  return verdict;
}

bool ReplicaComparison::Check::differs() const {
  return std::ranges::any_of(
      sums, [this](const auto& one) { return one.second != sums.begin()->second; });
}

// ---- what nodes say ----

std::optional<Announcement> ReplicaComparison::reported(SessionId from, const ReplicaReport& report,
                                                        const Membership& membership, Time now) {
  if (!begin(from, membership, report.round)) return std::nullopt;
  const auto node = nodes_.find(from);
  if (node == nodes_.end()) return std::nullopt;
  for (const ReplicaSum& sum : report.sums) add(node->second, sum);
  if (!is_asking_) return look_for_difference(now);
  if (report.question != question_.number) return std::nullopt;
  for (const ReplicaTensors& tensors : report.tensors)
    for (const int rank : tensors.ranks)
      if (node_of(rank) == &node->second && asked_.sums.contains(rank))
        answers_.try_emplace(rank, Answer{tensors.tensors, tensors.cells, tensors.names});
  return answers_.size() < asked_.sums.size() ? std::nullopt : narrow(now);
}

// Returns false for another round than the one that runs. A node that comes back has another
// session.
bool ReplicaComparison::begin(SessionId from, const Membership& membership, std::int64_t round) {
  if (membership.phase() != Membership::Phase::kRunning || round != membership.round_number())
    return false;
  if (round == round_ && nodes_.contains(from)) return true;
  if (round != round_) end();
  world_size_ = 0;
  nodes_.clear();
  const std::vector<const Member*> by_seat = membership.members().by_seat();
  if (by_seat.empty()) return false;
  round_ = round;
  for (const Member* const member : by_seat) {
    const NodeSpec& spec = member->entrant.spec;
    if (spec.compares_replicas)
      nodes_[member->session()] = {world_size_, spec.local_world_size, spec.hostname};
    if (!spec.compares_replicas) node_without_ = spec.hostname;
    world_size_ += spec.local_world_size;
  }
  return true;
}

std::optional<std::string> ReplicaComparison::take_node_without() {
  if (is_node_without_told_ || !node_without_) return std::nullopt;
  is_node_without_told_ = true;
  return node_without_;
}

const ReplicaComparison::Node* ReplicaComparison::node_of(int rank) const {
  const auto holds = [rank](const auto& one) {
    return rank >= one.second.first_rank && rank < one.second.first_rank + one.second.ranks;
  };
  const auto found = std::ranges::find_if(nodes_, holds);
  return found == nodes_.end() ? nullptr : &found->second;
}

void ReplicaComparison::add(const Node& node, const ReplicaSum& sum) {
  if (sum.members < 2 || sum.members > world_size_) return;
  const auto most = kMostSetsOfRank * static_cast<std::size_t>(world_size_);
  if (sets_.size() >= most && !sets_.contains(sum.set)) return;
  Set& set = sets_.try_emplace(sum.set, Set{.members = sum.members}).first->second;
  if (set.is_told || set.members != sum.members) return;
  Check& check = set.checks[sum.step];
  for (const int rank : sum.ranks)
    if (rank >= node.first_rank && rank < node.first_rank + node.ranks)
      check.sums.try_emplace(rank, sum.sum);
  // The oldest: some nodes do not have it any more.
  if (set.checks.size() > kMostOpenChecks) set.checks.erase(set.checks.begin());
}

// ---- what they are asked ----

// Those before a check that is equal everywhere are not waited for any more.
void ReplicaComparison::forget_equal_checks(Set& set) {
  const auto members = static_cast<std::size_t>(set.members);
  for (auto check = set.checks.begin(); check != set.checks.end();) {
    const bool is_complete = check->second.sums.size() >= members;
    if (is_complete && check->second.differs()) return;
    ++check;
    if (is_complete) check = set.checks.erase(set.checks.begin(), check);
  }
}

std::optional<Announcement> ReplicaComparison::look_for_difference(Time now) {
  for (auto& [key, set] : sets_) {
    if (set.is_told) continue;
    forget_equal_checks(set);
    const auto members = static_cast<std::size_t>(set.members);
    for (const auto& [step, check] : set.checks) {
      if (check.sums.size() < members || !check.differs()) continue;
      question_ = {.round = round_, .set = key, .step = step};
      asked_ = check;
      return ask(0, 0, now);
    }
  }
  return std::nullopt;
}

Announcement ReplicaComparison::ask(std::int64_t first, std::int64_t count, Time now) {
  answers_.clear();
  is_asking_ = true;
  ends_at_ = now + kReplicaAnswerLimit;
  question_.number = ++number_;
  question_.first = first;
  question_.count = count;
  std::set<SessionId> to;
  for (const auto& [session, node] : nodes_)
    for (const auto& [rank, sum] : asked_.sums)
      if (rank >= node.first_rank && rank < node.first_rank + node.ranks) to.insert(session);
  return {{to.begin(), to.end()}, question_};
}

std::optional<Announcement> ReplicaComparison::narrow(Time now) {
  std::vector<RankTensors> answers;
  std::int64_t tensors = 0;
  for (const auto& [rank, answer] : answers_) {
    const Node* const node = node_of(rank);
    answers.push_back({rank, node == nullptr ? "" : node->hostname, answer.cells, answer.names});
    tensors = std::max(tensors, answer.tensors);
  }
  const std::int64_t rest = std::max<std::int64_t>(tensors - question_.first, 0);
  const std::int64_t count = question_.count == 0 ? rest : std::min(question_.count, rest);
  const std::vector<std::size_t> cells = cells_that_differ(answers);
  constexpr auto kNamed = static_cast<std::int64_t>(kMostReplicaNames);
  if (cells.empty()) return conclude(verdict_of_sums());
  fill_in(answers, cells.front());
  if (question_.count != 0 && question_.count <= kNamed)
    return conclude(judge_replicas(answers, question_.step));
  const std::int64_t width = cell_width(count);
  const std::int64_t first = question_.first + static_cast<std::int64_t>(cells.front()) * width;
  return ask(first, width == 1 ? kNamed : width, now);
}

// A rank that has lost its hashes is not wrong for it. Ranks of equal sums have equal tensors, so
// another one speaks for it. Without such a rank it is left out.
void ReplicaComparison::fill_in(std::vector<RankTensors>& answers, std::size_t cell) const {
  const auto lacks = [cell](const RankTensors& one) { return one.cells.size() <= cell; };
  for (RankTensors& one : answers) {
    const auto speaks = [&](const RankTensors& other) {
      return !lacks(other) && asked_.sums.at(other.rank) == asked_.sums.at(one.rank);
    };
    if (!lacks(one)) continue;
    const auto other = std::ranges::find_if(answers, speaks);
    if (other != answers.end()) one.cells = other->cells;
  }
  std::erase_if(answers, lacks);
}

// The single tensors are not known: a node has not answered, or has lost them.
ReplicaVerdict ReplicaComparison::verdict_of_sums() const {
  std::vector<RankTensors> answers;
  for (const auto& [rank, sum] : asked_.sums) {
    const Node* const node = node_of(rank);
    answers.push_back({rank, node == nullptr ? "" : node->hostname, {sum}});
  }
  return judge_replicas(answers, question_.step);
}

Announcement ReplicaComparison::conclude(ReplicaVerdict verdict) {
  is_asking_ = false;
  ends_at_ = Time::min();  // another set may differ as well
  Set& set = sets_[question_.set];
  set.is_told = true;
  set.checks.clear();
  answers_.clear();
  verdict.round = round_;
  if (verdict.ranks.size() > kMostVerdictRanks) verdict.ranks.resize(kMostVerdictRanks);
  return {sessions(), std::move(verdict)};
}

std::vector<SessionId> ReplicaComparison::sessions() const {
  std::vector<SessionId> all;
  for (const auto& [session, node] : nodes_) all.push_back(session);
  return all;
}

void ReplicaComparison::follow(const Membership& membership) {
  const bool runs =
      membership.phase() == Membership::Phase::kRunning && membership.round_number() == round_;
  if (!runs) end();
}

std::optional<Announcement> ReplicaComparison::tick(Time now) {
  if (now < ends_at_) return std::nullopt;
  ends_at_ = Time::max();
  if (!is_asking_) return look_for_difference(now);
  return conclude(verdict_of_sums());
}

void ReplicaComparison::end() {
  round_ = 0;
  world_size_ = 0;
  is_asking_ = false;
  ends_at_ = Time::max();
  nodes_.clear();
  sets_.clear();
  answers_.clear();
}

}  // namespace ddprun::rendezvous
