#include "launcher/report/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace ddprun::launcher {
namespace {

using Line = nlohmann::json;

constexpr double kLatestTime = 1e11;  // the year 5138
constexpr std::size_t kMostText = 4096;

double number_of(const Line& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number()) return 0;
  return std::clamp(found->get<double>(), -1.0, kLatestTime);
}

template <typename Whole>
Whole whole_of(const Line& line, const char* name) {
  constexpr double kMost = 1e9;
  return static_cast<Whole>(std::min(number_of(line, name), kMost));
}

std::string text_of(const Line& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>().substr(0, kMostText);
}

BreakFact break_of(const Line& line) {
  return {.time = number_of(line, "time"),
          .kind = text_of(line, "kind"),
          .text = text_of(line, "text"),
          .hostname = text_of(line, "hostname"),
          .rank = line.contains("rank") ? whole_of<int>(line, "rank") : -1};
}

void begin_round(NodeHistory& history, const Line& line) {
  history.run_id = text_of(line, "run_id");
  history.hostname = text_of(line, "hostname");
  const RoundFact round{.number = whole_of<std::int64_t>(line, "round"),
                        .began = number_of(line, "time"),
                        .waited = number_of(line, "waited"),
                        .node_rank = whole_of<int>(line, "node_rank"),
                        .nodes = whole_of<int>(line, "nodes"),
                        .first_rank = whole_of<int>(line, "first_rank"),
                        .workers = whole_of<int>(line, "workers"),
                        .world_size = whole_of<int>(line, "world_size")};
  const bool is_next = history.rounds.empty() || history.rounds.back().number < round.number;
  if (is_next && round.number > 0 && history.rounds.size() < kMostRounds)
    history.rounds.push_back(round);
}

void note_steps(RoundFact& round, const Line& line) {
  round.steps = whole_of<std::int64_t>(line, "steps");
  round.first_step = number_of(line, "first_step");
  round.last_step = std::max(number_of(line, "last_step"), round.first_step);
}

void note_standstill(RoundFact& round, const Line& line) {
  if (round.standstills.size() >= kMostStandstills) return;
  round.standstills.push_back(
      {.time = number_of(line, "time"), .sentence = text_of(line, "sentence")});
}

void note_stragglers(RoundFact& round, const Line& line) {
  if (round.stragglers.size() < kMostStragglers)
    round.stragglers.push_back({number_of(line, "time"), text_of(line, "sentence")});
}

// An event of the round that the line names; others are of no round that began.
void note(NodeHistory& history, const std::string& event, const Line& line) {
  if (event == "job_end") history.end = break_of(line);
  if (history.rounds.empty()) return;
  RoundFact& round = history.rounds.back();
  if (whole_of<std::int64_t>(line, "round") != round.number) return;
  if (event == "steps") note_steps(round, line);
  if (event == "broken" && !round.broke) round.broke = break_of(line);
  if (event == "round_end") round.ended = number_of(line, "time");
  if (event == "standstill") note_standstill(round, line);
  if (event == "stragglers") note_stragglers(round, line);
  if (event == "went_on" && !round.standstills.empty())
    round.standstills.back().went_on_after = number_of(line, "after");
}

}  // namespace

NodeHistory parse_history(std::string_view text) {
  NodeHistory history;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Line line = Line::parse(text.substr(0, end), nullptr, false);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.is_object()) continue;
    const double time = number_of(line, "time");
    if (time <= 0) continue;
    const std::string event = text_of(line, "event");
    if (event == "round")
      begin_round(history, line);
    else
      note(history, event, line);
    history.last_sign = std::max(history.last_sign, time);
  }
  return history;
}

}  // namespace ddprun::launcher
