#include "rendezvous/core/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/number_ranges.h"

namespace ddprun::rendezvous {
namespace {

// Times up to an hour are believed.
constexpr std::int64_t kLongestUs = std::int64_t{3'600} * 1'000'000;

bool is_time(std::int64_t us) { return us >= 0 && us <= kLongestUs; }

bool makes_sense(const StepSample& sample) {
  return sample.steps > 0 && sample.calls >= 0 && sample.members > 0 && sample.step_us > 0 &&
         is_time(sample.step_us) && sample.called_us.size() <= kMostSampledCalls &&
         std::ranges::all_of(sample.called_us, is_time);
}

// The lower one of the two in the middle: of two ranks, the faster one is the measure.
template <typename Number>
Number lower_median(std::vector<Number> numbers) {
  const auto middle = numbers.begin() + (std::ssize(numbers) - 1) / 2;
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

int usual_cpu_wait(const std::vector<StepSample>& samples) {
  std::vector<int> waits;
  waits.reserve(samples.size());
  for (const StepSample& one : samples) waits.push_back(one.cpu_wait);
  return lower_median(std::move(waits));
}

// When the last rank came to each call.
std::vector<std::int64_t> last_calls(const std::vector<StepSample>& samples) {
  std::vector<std::int64_t> last(samples.front().called_us.size());
  for (const StepSample& one : samples)
    for (std::size_t at = 0; at < last.size(); ++at)
      last[at] = std::max(last[at], one.called_us[at]);
  return last;
}

std::int64_t longest_wait(const StepSample& sample, const std::vector<std::int64_t>& last) {
  std::int64_t longest = 0;
  for (std::size_t at = 0; at < last.size(); ++at)
    longest = std::max(longest, last[at] - sample.called_us[at]);
  return longest;
}

void add_sentence(std::string& all, const std::string& one) {
  all += (all.empty() ? "" : "; ") + one;
}

constexpr int kMuch = 50;  // thousandths

// "; of its host's CPUs 12 % are stolen by the hypervisor"; empty if nothing is odd.
std::string host_text(const HostSample& host) {
  constexpr int kManyOthers = 200;
  constexpr int kSlowFrequency = 800;
  std::string text;
  const auto add = [&text](const char* what, int thousandths) {
    text += fmt::format("; {} {:.0f} %", what, thousandths / 10.0);
  };
  if (host.stolen >= kMuch) add("the hypervisor took of its host's CPUs", host.stolen);
  if (host.throttled >= kMuch) add("its cgroup was over its CPU quota in", host.throttled);
  if (host.others >= kManyOthers) add("other programs used of its host's CPUs", host.others);
  if (host.frequency > 0 && host.frequency < kSlowFrequency)
    add("its host's CPUs run at", host.frequency);
  return text;
}

}  // namespace

std::vector<OwnTime> own_times(const std::vector<StepSample>& samples) {
  if (samples.size() < 2) return {};
  const std::vector<std::int64_t> last = last_calls(samples);
  std::vector<OwnTime> all;
  std::vector<double> each;
  for (const StepSample& one : samples) {
    const std::int64_t own = last.empty() ? one.step_us : last.back() - longest_wait(one, last);
    all.push_back(
        {.rank = one.rank, .own_us = static_cast<double>(std::max<std::int64_t>(own, 1))});
    each.push_back(all.back().own_us);
  }
  const double median = lower_median(std::move(each));
  for (OwnTime& one : all) one.ratio = one.own_us / median;
  return all;
}

// ---- what nodes say ----

std::optional<Announcement> Stragglers::reported(SessionId from, const StepReport& report,
                                                 const Membership& membership, Time now) {
  if (!begin(from, membership, report.round, now)) return std::nullopt;
  const auto node = nodes_.find(from);
  if (node == nodes_.end()) return std::nullopt;
  std::optional<Announcement> said;
  node->second.host = report.host;
  for (const StepSample& sample : report.samples) {
    if (!node->second.holds(sample.rank) || !makes_sense(sample)) continue;
    if (window_.contains(sample.rank) && !said) said = judge_window(now);
    window_.try_emplace(sample.rank, sample);
  }
  if (!said && std::ssize(window_) == world_size_) said = judge_window(now);
  return said;
}

// Returns false for another round than the one that runs. A node that comes back has another
// session.
bool Stragglers::begin(SessionId from, const Membership& membership, std::int64_t round, Time now) {
  if (membership.phase() != Membership::Phase::kRunning || round != membership.round_number())
    return false;
  if (round == round_ && nodes_.contains(from)) return true;
  if (round != round_) {
    end();
    window_began_ = now;
  }
  world_size_ = 0;
  nodes_.clear();
  const std::vector<const Member*> by_seat = membership.members().by_seat();
  if (by_seat.empty()) return false;
  round_ = round;
  for (const Member* const member : by_seat) {
    const NodeSpec& spec = member->entrant.spec;
    nodes_[member->session()] = {world_size_, spec.local_world_size, spec.hostname,
                                 spec.hears_stragglers};
    world_size_ += spec.local_world_size;
  }
  return true;
}

void Stragglers::follow(const Membership& membership) {
  const bool runs =
      membership.phase() == Membership::Phase::kRunning && membership.round_number() == round_;
  if (!runs) end();
}

void Stragglers::end() {
  round_ = 0;
  world_size_ = 0;
  nodes_.clear();
  window_.clear();
  ranks_.clear();
}

// ---- what is made of it ----

// Ranks of other groups, or with another number of calls, do not do the same work.
std::optional<Announcement> Stragglers::judge_window(Time now) {
  std::map<std::tuple<std::uint64_t, int, int, std::size_t>, std::vector<StepSample>> alike;
  for (auto& [rank, sample] : window_)
    alike[{sample.group, sample.members, sample.calls, sample.called_us.size()}].push_back(
        std::move(sample));
  window_.clear();
  for (const auto& [key, samples] : alike) {
    // The median of a few says nothing of the others.
    if (std::ssize(samples) * 2 <= samples.front().members) continue;
    judge(samples);
    judge_times(samples);
  }
  std::optional<Announcement> said = tell(now);
  window_began_ = now;
  return said;
}

void Stragglers::judge(const std::vector<StepSample>& alike) {
  const std::vector<OwnTime> owns = own_times(alike);
  const int usual_wait = usual_cpu_wait(alike);
  for (std::size_t at = 0; at < owns.size(); ++at) {
    Rank& rank = ranks_[owns[at].rank];
    note(rank.mean, owns[at], kSlower);
    rank.cpu_wait = alike[at].cpu_wait;
    rank.usual_cpu_wait = usual_wait;
  }
}

// The percentile 97 has one step in 20, and not what a busy host does to one in 100.
void Stragglers::judge_times(const std::vector<StepSample>& alike) {
  const bool has_all = std::ranges::all_of(alike, [](const StepSample& one) {
    return one.steps >= kLeastStepsForTimes && one.spread.own_p97_us > 0 &&
           is_time(one.spread.own_p97_us);
  });
  if (!has_all || alike.size() < 2) return;
  std::vector<std::int64_t> times;
  times.reserve(alike.size());
  for (const StepSample& one : alike) times.push_back(one.spread.own_p97_us);
  const auto median = static_cast<double>(lower_median(std::move(times)));
  for (const StepSample& one : alike) {
    const auto own = static_cast<double>(one.spread.own_p97_us);
    note(ranks_[one.rank].at_times, {one.rank, own, own / median}, kSlowerAtTimes);
  }
}

void Stragglers::note(Streak& streak, const OwnTime& own, double slower) const {
  streak.last = own;
  if (own.ratio > slower) {
    if (streak.slow_windows++ == 0) streak.slow_since = window_began_;
    streak.fast_windows = 0;
    return;
  }
  streak.slow_windows = 0;
  if (++streak.fast_windows >= kFastWindows) streak.is_told = false;
}

// None if people know of all of them. One that is slow in the mean is so in some steps, too.
std::vector<int> Stragglers::slow_ranks_with_news(const Node& node, Streak Rank::*streak) {
  std::vector<int> slow;
  bool has_news = false;
  const auto end = ranks_.lower_bound(node.first_rank + node.ranks);
  for (auto at = ranks_.lower_bound(node.first_rank); at != end; ++at) {
    if (!(at->second.*streak).is_slow()) continue;
    if (streak == &Rank::at_times && at->second.mean.slow_windows > 0) continue;
    slow.push_back(at->first);
    has_news = !std::exchange((at->second.*streak).is_told, true) || has_news;
  }
  return has_news ? slow : std::vector<int>{};
}

std::optional<Announcement> Stragglers::tell(Time now) {
  StragglerVerdict verdict{.round = round_};
  std::vector<SessionId> to;
  std::map<int, std::string> sentences;  // by the first rank of the node
  for (const auto& [session, node] : nodes_) {
    if (node.hears) to.push_back(session);
    for (Streak Rank::*const streak : {&Rank::mean, &Rank::at_times}) {
      const std::vector<int> slow = slow_ranks_with_news(node, streak);
      if (slow.empty()) continue;
      add_sentence(sentences[node.first_rank], sentence_of(node, slow, streak, now));
      verdict.ranks.insert(verdict.ranks.end(), slow.begin(), slow.end());
    }
  }
  if (sentences.empty()) return std::nullopt;
  for (const auto& [first_rank, sentence] : sentences) add_sentence(verdict.sentence, sentence);
  std::ranges::sort(verdict.ranks);
  if (verdict.ranks.size() > kMostVerdictRanks) verdict.ranks.resize(kMostVerdictRanks);
  return Announcement{std::move(to), std::move(verdict)};
}

// "rank 3 on node-b is slower than the others: …"
std::string Stragglers::sentence_of(const Node& node, const std::vector<int>& slow,
                                    Streak Rank::*streak, Time now) const {
  const bool is_node = std::ssize(slow) == node.ranks && node.ranks > 1;
  const bool is_one = slow.size() == 1;
  const auto slowest =
      std::ranges::max(slow, {}, [&](int rank) { return (ranks_.at(rank).*streak).last.ratio; });
  const Rank& rank = ranks_.at(slowest);
  const Streak& seen = rank.*streak;
  const bool is_at_times = streak == &Rank::at_times;
  constexpr double kMilli = 1000;
  std::string text = fmt::format(
      "{}rank{} {} on {} {} slower than the others{}: own time {:.1f} ms {}, {:.2f} x the median, "
      "for {} s",
      is_node ? "all " : "", is_one ? "" : "s", number_ranges(slow, ", "), node.hostname,
      is_one ? "is" : "are", is_at_times ? " at times" : "", seen.last.own_us / kMilli,
      is_at_times ? "in 3 % of the steps" : "a step", seen.last.ratio,
      std::chrono::round<std::chrono::seconds>(now - seen.slow_since).count());
  if (rank.cpu_wait >= kMuch && rank.cpu_wait >= 2 * rank.usual_cpu_wait)
    text += fmt::format("; it waited for a CPU {:.0f} % of the time, the others {:.0f} %",
                        rank.cpu_wait / 10.0, rank.usual_cpu_wait / 10.0);
  return text + host_text(node.host);
}

}  // namespace ddprun::rendezvous
