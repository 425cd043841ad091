#include "rendezvous/core/strikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/numbers.h"
#include "rendezvous/core/progress.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kMostSeen = 16;
constexpr std::int64_t kLongestAge = std::int64_t{10} * 365 * 24 * 3600;  // seconds

std::int64_t whole_seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

// A name with a blank would be read as two words.
bool is_name(std::string_view text) {
  const auto is_blank = [](char letter) { return letter >= 0 && letter <= ' '; };
  return !text.empty() && text.size() <= kMostStruckName && !std::ranges::any_of(text, is_blank);
}

// Takes the text up to `mark`, and the mark, off `rest`.
std::string_view take_word(std::string_view& rest, char mark) {
  const std::size_t end = std::min(rest.find(mark), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

// Takes `name=` off the word; false: it does not begin so.
bool take_key(std::string_view& word, std::string_view name) {
  if (!word.starts_with(name)) return false;
  word.remove_prefix(name.size());
  return true;
}

// -1: it is no number of seconds.
std::int64_t seconds_of(std::string_view word) {
  const auto value = parse_whole<std::int64_t>(word);
  return value && *value >= 0 ? std::min(*value, kLongestAge) : -1;
}

}  // namespace

std::string_view describe(NodeFault fault) {
  switch (fault) {
    case NodeFault::kNone:
      break;
    case NodeFault::kLost:
      return "it was lost";
    case NodeFault::kInKernel:
      return "no signal ended a worker of it";
    case NodeFault::kDevice:
      return "a device of it does not work";
    case NodeFault::kMemory:
      return "a worker was killed there for want of memory";
    case NodeFault::kStandstill:
      return "a worker stood still there in the kernel";
    case NodeFault::kExitCode:
      return "a worker's exit code says so";
  }
  return "its failures";
}

const Strikes::Node* Strikes::find(const std::string& name) const {
  const auto found = std::ranges::find(nodes_, name, &Node::name);
  return found == nodes_.end() ? nullptr : &*found;
}

Strikes::Node* Strikes::find(const std::string& name) {
  return const_cast<Node*>(std::as_const(*this).find(name));
}

// A strike is halved at the end of each half-life, and not little by little. So two of them within
// one half-life are two.
double Strikes::count(const Node& node, Time now) const {
  double sum = 0;
  for (const Time at : node.strikes) {
    const auto halvings = rules_.half_life.count() > 0 ? (now - at) / rules_.half_life : 0;
    if (halvings < kHalvings) sum += 1.0 / static_cast<double>(1 << std::max<long>(halvings, 0));
  }
  return sum;
}

double Strikes::count(const std::string& node, Time now) const {
  const Node* const found = find(node);
  return found == nullptr ? 0 : count(*found, now);
}

Time Strikes::pause_ends(const std::string& node) const {
  const Node* const found = find(node);
  return found == nullptr || rules_.most == 0 ? Time::min() : found->ends;
}

Time Strikes::next_return(Time now) const {
  Time next = Time::max();
  if (rules_.most == 0) return next;
  for (const Node& node : nodes_)
    if (node.ends > now) next = std::min(next, node.ends);
  return next;
}

bool Strikes::failed(const std::string& node, std::int64_t round, const Failure& cause, Time now) {
  if (rules_.most == 0 || cause.fault == NodeFault::kNone || !is_name(node)) return false;
  forget_old(now);
  const Node* const known = find(node);
  if (known != nullptr && known->round == round) return false;
  const bool is_of_a_worker =
      cause.fault != NodeFault::kLost && cause.fault != NodeFault::kInKernel;
  if (is_of_a_worker) {
    Seen failure{.node = node,
                 .round = round,
                 .rank = cause.rank,
                 .fault = cause.fault,
                 .exception = std::string(exception_of(cause.words)),
                 .at = now};
    const bool is_the_programs = this->is_the_programs(failure, now);
    if (seen_.size() == kMostSeen) seen_.erase(seen_.begin());
    seen_.push_back(std::move(failure));
    if (is_the_programs) return false;
  }
  strike(node, round, now);
  return true;
}

// Undoes what other nodes got for it. A kill for want of memory needs no more than another node.
bool Strikes::is_the_programs(const Seen& failure, Time now) {
  bool is_found = false;
  for (const Seen& other : seen_) {
    if (other.node == failure.node || other.fault != failure.fault) continue;
    if (other.exception != failure.exception) continue;
    const bool is_alike = other.round == failure.round || other.rank == failure.rank ||
                          failure.fault == NodeFault::kMemory;
    if (!is_alike) continue;
    is_found = true;
    undo(other, now);
  }
  return is_found;
}

void Strikes::undo(const Seen& failure, Time now) {
  Node* const node = find(failure.node);
  if (node == nullptr || std::erase(node->strikes, failure.at) == 0) return;
  if (node->strikes.empty()) {
    forgive(node->name);
  } else if (count(*node, now) < rules_.most) {
    node->ends = Time::min();
    node->pauses = std::max(node->pauses - 1, 0);
  }
}

void Strikes::strike(const std::string& name, std::int64_t round, Time now) {
  Node* node = find(name);
  if (node == nullptr) {
    if (nodes_.size() == kMostStruckNodes) nodes_.erase(nodes_.begin());
    node = &nodes_.emplace_back(Node{.name = name, .strikes = {}});
  }
  if (node->strikes.size() == kMostStrikes) node->strikes.erase(node->strikes.begin());
  node->strikes.push_back(now);
  node->round = round;
  if (count(*node, now) < rules_.most) return;
  const std::chrono::seconds pause = kFirstPause * (1 << std::min(node->pauses++, 10));
  node->ends = now + std::min(pause, kLongestPause);
}

bool Strikes::forgive(const std::string& node) {
  // A copy: the name may be one of those that go.
  const std::string name = node;
  return std::erase_if(nodes_, [&](const Node& one) { return one.name == name; }) > 0;
}

bool Strikes::forget_old(Time now) {
  if (rules_.half_life.count() == 0) return false;
  std::erase_if(seen_, [&](const Seen& failure) {
    return (now - failure.at) / rules_.half_life >= kHalvings;
  });
  for (Node& node : nodes_)
    std::erase_if(node.strikes,
                  [&](Time at) { return (now - at) / rules_.half_life >= kHalvings; });
  const auto is_over = [&](const Node& node) { return node.strikes.empty() && node.ends <= now; };
  return std::erase_if(nodes_, is_over) > 0;
}

std::string Strikes::text(Time now) const {
  std::string text;
  for (const Node& node : nodes_) {
    std::string line = node.name + " strikes=";
    for (const Time at : node.strikes) line += fmt::format("{},", whole_seconds(now - at));
    if (!node.strikes.empty()) line.pop_back();
    const Time ends = std::max(node.ends, now);
    line += fmt::format(" pauses={} left={}\n", node.pauses, whole_seconds(ends - now));
    if (text.size() + line.size() > kMostStrikesText) break;
    text += line;
  }
  return text;
}

Result<Strikes::Node> Strikes::parse(std::string_view line, Time then) {
  const Error error(ErrorCode::kProtocol,
                    "expected lines as in NODE strikes=10,600 pauses=0 left=0");
  Node node{.name = std::string(take_word(line, ' ')), .strikes = {}};
  std::string_view ages = take_word(line, ' ');
  std::string_view pauses = take_word(line, ' ');
  if (!is_name(node.name) || !take_key(ages, "strikes=") || !take_key(pauses, "pauses=") ||
      !take_key(line, "left="))
    return error;
  while (!ages.empty()) {
    const std::int64_t age = seconds_of(take_word(ages, ','));
    if (age < 0 || node.strikes.size() == kMostStrikes) return error;
    node.strikes.push_back(then - std::chrono::seconds(age));
  }
  const std::int64_t times = seconds_of(pauses);
  const std::int64_t left = seconds_of(line);
  if (times < 0 || left < 0 || left > kLongestPause.count()) return error;
  node.pauses = static_cast<int>(std::min<std::int64_t>(times, 16));
  if (left > 0) node.ends = then + std::chrono::seconds(left);
  return node;
}

Result<void> Strikes::add(std::string_view text, Time then) {
  while (!text.empty()) {
    const auto node = parse(take_word(text, '\n'), then);
    if (!node) return node.error();
    Node* const known = find(node->name);
    if (known == nullptr && nodes_.size() < kMostStruckNodes) nodes_.push_back(*node);
    if (known != nullptr && known->strikes.size() < node->strikes.size()) *known = *node;
  }
  return {};
}

}  // namespace ddprun::rendezvous
