#include "launcher/report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

namespace ddprun::launcher {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kWaiting = "waiting for nodes";
constexpr const char* kStart = "start";
constexpr const char* kWentOn = "standstills that went on";
constexpr const char* kAfterSteps = "after the last step";
constexpr const char* kNoSteps = "without counted steps";

// ---- clocks ----

const RoundFact* round_of(const NodeHistory& node, std::int64_t number) {
  const auto found = std::ranges::find(node.rounds, number, &RoundFact::number);
  return found == node.rounds.end() ? nullptr : &*found;
}

// How far the clock of `node` is ahead of that of `other`: the middle of their rounds.
double ahead(const NodeHistory& node, const NodeHistory& other) {
  std::vector<double> each;
  for (const RoundFact& round : node.rounds)
    if (const RoundFact* same = round_of(other, round.number))
      each.push_back(round.began - same->began);
  if (each.empty()) return 0;
  const auto middle = each.begin() + std::ssize(each) / 2;
  std::ranges::nth_element(each, middle);
  return *middle;
}

void shift(double& time, double by) {
  if (time > 0) time -= by;
}

void shift(NodeHistory& node, double by) {
  for (RoundFact& round : node.rounds) {
    for (double* time : {&round.began, &round.first_step, &round.last_step}) shift(*time, by);
    if (round.ended) shift(*round.ended, by);
    if (round.broke) shift(round.broke->time, by);
    for (StandstillFact& one : round.standstills) shift(one.time, by);
    for (StragglerFact& one : round.stragglers) shift(one.time, by);
  }
  if (node.end) shift(node.end->time, by);
  shift(node.last_sign, by);
}

// ---- rounds ----

// The same fact as another node has it: a verdict is told to all of them.
template <typename Fact>
auto find_same(std::vector<Fact>& all, const Fact& one) {
  return std::ranges::find_if(all, [&](const Fact& other) {
    constexpr double kSame = 30;
    return other.sentence == one.sentence && std::abs(other.time - one.time) < kSame;
  });
}

void add_standstills(std::vector<StandstillFact>& all, const std::vector<StandstillFact>& more) {
  for (const StandstillFact& one : more) {
    const auto known = find_same(all, one);
    if (known == all.end())
      all.push_back(one);
    else if (!known->went_on_after)
      known->went_on_after = one.went_on_after;
  }
}

void add_stragglers(std::vector<StragglerFact>& all, const std::vector<StragglerFact>& more) {
  for (const StragglerFact& one : more)
    if (find_same(all, one) == all.end()) all.push_back(one);
}

// The first that was told; the words of the rank, from whoever has them.
void add_cause(RoundFact& fact, const BreakFact& more) {
  std::string error = more.error;
  if (fact.broke && error.empty()) error = fact.broke->error;
  if (!fact.broke || more.time < fact.broke->time) fact.broke = more;
  fact.broke->error = std::move(error);
}

// Adds what another node knows of the round. Its ranks' steps count if they are fewer.
void add(ReportedRound& round, const RoundFact& more) {
  RoundFact& fact = round.fact;
  ++round.present;
  fact.began = std::min(fact.began, more.began);
  fact.waited = std::max(fact.waited, more.waited);
  if (more.ended) fact.ended = std::max(fact.ended.value_or(0), *more.ended);
  if (more.steps > 0 && (fact.steps == 0 || more.steps < fact.steps)) {
    fact.steps = more.steps;
    fact.first_step = more.first_step;
    fact.last_step = more.last_step;
  }
  if (more.broke) add_cause(fact, *more.broke);
  add_standstills(fact.standstills, more.standstills);
  add_stragglers(fact.stragglers, more.stragglers);
}

std::vector<ReportedRound> merged(const std::vector<NodeHistory>& nodes) {
  std::map<std::int64_t, ReportedRound> rounds;
  for (const NodeHistory& node : nodes) {
    for (const RoundFact& one : node.rounds) {
      const auto [found, is_new] = rounds.try_emplace(one.number, ReportedRound{one, {}, 1});
      if (!is_new) add(found->second, one);
    }
  }
  std::vector<ReportedRound> all;
  all.reserve(rounds.size());
  for (auto& [number, round] : rounds) all.push_back(std::move(round));
  return all;
}

std::string cause_text(const BreakFact& cause) {
  std::string text = cause.text.empty() ? words_of_kind(cause.kind) : cause.text;
  if (text.find(cause.error) == std::string::npos) text += ": " + cause.error;
  if (cause.rank < 0) return text;
  return fmt::format("rank {} on {}: {}", cause.rank, cause.hostname, text);
}

// ---- where the time went ----

class TimeTable {
 public:
  void add(const std::string& what, double seconds, int times = 0) {
    if (what.empty() || (seconds <= 0 && times == 0)) return;
    const auto found = std::ranges::find(shares_, what, &TimeShare::what);
    TimeShare& share = found == shares_.end() ? shares_.emplace_back(TimeShare{what}) : *found;
    share.seconds += std::max(seconds, 0.0);
    share.times += times;
  }
  std::vector<TimeShare> largest_first() {
    std::ranges::stable_sort(shares_, std::greater(), &TimeShare::seconds);
    return std::move(shares_);
  }

 private:
  std::vector<TimeShare> shares_;
};

// From the last step before a standstill until the next one.
double standstill_for(const RoundFact& round) {
  double sum = 0;
  for (const StandstillFact& one : round.standstills) sum += one.went_on_after.value_or(0);
  return sum;
}

// The first step began a step's length before its end, as far as the others tell.
double steps_began(const RoundFact& round, double not_before) {
  if (round.steps < 2) return std::clamp(round.first_step, not_before, round.last_step);
  const double all = std::max(round.last_step - round.first_step - standstill_for(round), 0.0);
  const double one = all / static_cast<double>(round.steps - 1);
  return std::min(std::max(round.first_step - one, not_before), round.last_step);
}

int times_it_went_on(const RoundFact& round) {
  return static_cast<int>(std::ranges::count_if(
      round.standstills, [](const StandstillFact& one) { return one.went_on_after.has_value(); }));
}

// Walks along the run. All time before the steps of a round is lost to what came before it.
class TimeWalk {
 public:
  TimeWalk(double began, bool counts_steps) : at_(began), counts_steps_(counts_steps) {}

  void pass(const RoundFact& round, double latest) {
    if (is_first_) add_until(kWaiting, round.began, round.waited > 1 ? 1 : 0);
    if (round.steps > 0) pass_steps(round);
    if (!counts_steps_) pass_all(round, latest);
    is_first_ = false;
    if (!round.broke) {
      lost_to_ = kAfterSteps;
      return;
    }
    // Its attempt came to no step: the time until now is still that of the cause before it.
    if (counts_steps_ && round.steps == 0) add_until(lost_to_, round.broke->time);
    lost_to_ = words_of_kind(round.broke->kind);
    table_.add(lost_to_, 0, 1);
  }

  void end(double ended, RunReport& report) {
    add_until(lost_to_, ended);
    report.time = table_.largest_first();
    report.step_seconds = step_seconds_;
  }

 private:
  void add_until(const std::string& what, double until, int times = 0) {
    table_.add(what, until - at_, times);
    at_ = std::max(at_, until);
  }
  void pass_steps(const RoundFact& round) {
    add_until(lost_to_, steps_began(round, std::max(at_, round.began)), is_first_ ? 1 : 0);
    const double all = std::max(round.last_step - at_, 0.0);
    const double still = std::min(standstill_for(round), all);
    table_.add(kWentOn, still, times_it_went_on(round));
    table_.add(kSteps, all - still);
    step_seconds_ += all - still;
    at_ = std::max(at_, round.last_step);
  }
  void pass_all(const RoundFact& round, double latest) {
    add_until(lost_to_, round.began);
    add_until(kNoSteps, round.ended.value_or(latest));
  }

  TimeTable table_;
  std::string lost_to_ = kStart;
  double at_;
  const bool counts_steps_;
  bool is_first_ = true;
  double step_seconds_ = 0;
};

void share_time(RunReport& report) {
  TimeWalk walk(report.began, report.counts_steps());
  for (const ReportedRound& round : report.rounds) walk.pass(round.fact, report.ended);
  walk.end(report.ended, report);
}

// ---- the whole ----

void tell_end(RunReport& report, const std::vector<NodeHistory>& nodes) {
  const BreakFact* worst = nullptr;
  bool all_ended = true;
  for (const NodeHistory& node : nodes) {
    all_ended = all_ended && node.end.has_value();
    report.ended = std::max(report.ended, node.last_sign);
    if (node.end && (worst == nullptr || worst->kind == "success")) worst = &*node.end;
  }
  report.has_end = worst != nullptr && (all_ended || worst->kind != "success");
  if (!report.has_end) {
    report.end_text = "no end is written: it runs still, or was killed";
    return;
  }
  report.succeeded = worst->kind == "success";
  report.end_text = report.succeeded ? "ended well" : cause_text(*worst);
  RoundFact& last = report.rounds.back().fact;
  if (!report.succeeded && !last.broke) last.broke = *worst;
}

void tell_rounds(RunReport& report) {
  for (ReportedRound& round : report.rounds) {
    report.steps += round.fact.steps;
    if (round.fact.broke) round.why_ended = cause_text(*round.fact.broke);
  }
  if (report.succeeded) report.rounds.back().why_ended = "ended well";
}

std::vector<ReportedNode> tell_nodes(const RunReport& report, const std::vector<NodeHistory>& nodes,
                                     const std::vector<double>& clocks) {
  std::map<std::string, ReportedNode> by_name;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeHistory& one = nodes[i];
    ReportedNode& node = by_name[one.hostname];
    node.hostname = one.hostname;
    node.clock_ahead = clocks[i];
    node.folders.push_back(one.folder);
    node.rounds += static_cast<int>(one.rounds.size());
    for (std::size_t at = 0; at < one.rounds.size(); ++at) {
      const RoundFact& round = one.rounds[at];
      const double next = at + 1 < one.rounds.size() ? one.rounds[at + 1].began : one.last_sign;
      node.spans.push_back({.round = round.number,
                            .began = round.began,
                            .ended = round.ended.value_or(next),
                            .broke = round.broke.has_value(),
                            .first_step = round.first_step,
                            .last_step = round.last_step});
    }
  }
  // A resize is nobody's fault.
  for (const ReportedRound& round : report.rounds) {
    if (!round.fact.broke || round.fact.broke->kind == "resize") continue;
    const auto found = by_name.find(round.fact.broke->hostname);
    if (found != by_name.end()) ++found->second.blamed;
  }
  std::vector<ReportedNode> all;
  all.reserve(by_name.size());
  for (auto& [name, node] : by_name) all.push_back(std::move(node));
  return all;
}

}  // namespace

std::string words_of_kind(const std::string& kind) {
  static const std::map<std::string, std::string> kWords = {
      {"worker_failed", "a worker failed"},      {"node_lost", "a node was lost"},
      {"resize", "nodes came or left"},          {"standstill", "a rank stood still"},
      {"signal", "a signal ended it"},           {"operator", "an operator ended it"},
      {"rendezvous", "the rendezvous was lost"}, {"launcher", "ddprun could not go on"}};
  const auto found = kWords.find(kind);
  return found == kWords.end() ? "something else" : found->second;
}

RunReport make_report(std::vector<NodeHistory> nodes) {
  // The clock of the node that has been in most rounds.
  std::ranges::stable_sort(nodes, [](const NodeHistory& left, const NodeHistory& right) {
    return left.rounds.size() > right.rounds.size();
  });
  std::vector<double> clocks;
  const NodeHistory first = nodes.front();
  for (NodeHistory& node : nodes) {
    clocks.push_back(ahead(node, first));
    shift(node, clocks.back());
  }
  RunReport report{.run_id = first.run_id, .rounds = merged(nodes)};
  const RoundFact& round = report.rounds.front().fact;
  report.began = round.began - std::max(round.waited, 0.0);
  tell_end(report, nodes);
  tell_rounds(report);
  share_time(report);
  report.nodes = tell_nodes(report, nodes, clocks);
  return report;
}

}  // namespace ddprun::launcher
