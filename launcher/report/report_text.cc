#include "launcher/report/report_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/shown_text.h"
#include "base/text_table.h"

namespace ddprun::launcher {
namespace {

using Json = nlohmann::ordered_json;

// A console shows the end of a long run; the JSON and the page have more.
constexpr std::size_t kMostRows = 50;

std::string time_table(const RunReport& report) {
  std::vector<TextRow> rows = {{"TIME", "SHARE", "TIMES", "IN"}};
  for (const TimeShare& one : report.time)
    rows.push_back({duration_text(one.seconds), share_text(one.seconds / report.seconds()),
                    one.times == 0 ? "-" : fmt::format("{}", one.times), one.what});
  return text_table(rows);
}

std::string round_table(const RunReport& report) {
  std::vector<TextRow> rows = {{"ROUND", "BEGAN", "LASTED", "NODES", "RANKS", "STEPS", "ENDED BY"}};
  const std::size_t first = report.rounds.size() - std::min(report.rounds.size(), kMostRows);
  for (std::size_t i = first; i < report.rounds.size(); ++i) {
    const RoundFact& round = report.rounds[i].fact;
    rows.push_back(
        {fmt::format("{}", round.number), time_text(round.began),
         duration_text(round.ended.value_or(report.ended) - round.began),
         fmt::format("{}", round.nodes), fmt::format("{}", round.world_size),
         round.steps == 0 ? "-" : fmt::format("{}", round.steps),
         report.rounds[i].why_ended.empty() ? "-" : shown_text(report.rounds[i].why_ended)});
  }
  std::string text = text_table(rows);
  if (first > 0) text += fmt::format("({} rounds before these are left out)\n", first);
  return text;
}

// Empty: there was none.
std::string standstill_table(const RunReport& report) {
  std::vector<TextRow> rows = {{"ROUND", "TOLD", "WENT ON AFTER", "STANDSTILL"}};
  for (const ReportedRound& round : report.rounds)
    for (const StandstillFact& one : round.fact.standstills)
      rows.push_back({fmt::format("{}", round.fact.number), time_text(one.time),
                      one.went_on_after ? duration_text(*one.went_on_after) : "-",
                      shown_text(one.sentence)});
  if (rows.size() == 1) return {};
  if (rows.size() > kMostRows) rows.resize(kMostRows);
  return "\n" + text_table(rows);
}

// Empty: there was none.
std::string straggler_table(const RunReport& report) {
  std::vector<TextRow> rows = {{"ROUND", "TOLD", "STRAGGLERS"}};
  for (const ReportedRound& round : report.rounds)
    for (const StragglerFact& one : round.fact.stragglers)
      rows.push_back(
          {fmt::format("{}", round.fact.number), time_text(one.time), shown_text(one.sentence)});
  if (rows.size() == 1) return {};
  if (rows.size() > kMostRows) rows.resize(kMostRows);
  return "\n" + text_table(rows);
}

std::string node_table(const RunReport& report) {
  std::vector<TextRow> rows = {{"NODE", "ROUNDS", "TO BLAME", "CLOCK", "LOGS"}};
  for (const ReportedNode& node : report.nodes)
    rows.push_back(
        {shown_text(node.hostname), fmt::format("{}", node.rounds),
         node.blamed > 1 ? fmt::format("{}, recurs", node.blamed) : fmt::format("{}", node.blamed),
         fmt::format("{:+.3f} s", node.clock_ahead), shown_text(node.folders.front())});
  if (rows.size() > kMostRows) rows.resize(kMostRows);
  return text_table(rows);
}

// ---- JSON ----

Json break_json(const std::optional<BreakFact>& fact) {
  if (!fact) return nullptr;
  Json json = {{"time", fact->time},
               {"kind", fact->kind},
               {"text", fact->text},
               {"hostname", fact->hostname},
               {"rank", nullptr}};
  if (fact->rank >= 0) json["rank"] = fact->rank;
  return json;
}

Json round_json(const ReportedRound& one) {
  const RoundFact& round = one.fact;
  Json json = {{"round", round.number},
               {"began", round.began},
               {"ended", nullptr},
               {"nodes", round.nodes},
               {"nodes_with_logs", one.present},
               {"world_size", round.world_size},
               {"steps", round.steps},
               {"first_step", nullptr},
               {"last_step", nullptr},
               {"broke", break_json(round.broke)},
               {"standstills", Json::array()},
               {"stragglers", Json::array()}};
  if (round.ended) json["ended"] = *round.ended;
  if (round.steps > 0) json["first_step"] = round.first_step;
  if (round.steps > 0) json["last_step"] = round.last_step;
  for (const StandstillFact& still : round.standstills) {
    Json fact = {{"time", still.time}, {"sentence", still.sentence}, {"went_on_after_s", nullptr}};
    if (still.went_on_after) fact["went_on_after_s"] = *still.went_on_after;
    json["standstills"].push_back(std::move(fact));
  }
  for (const StragglerFact& slow : round.stragglers)
    json["stragglers"].push_back({{"time", slow.time}, {"sentence", slow.sentence}});
  return json;
}

}  // namespace

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr std::int64_t kHour = 3600;
  if (seconds < kMinute) return fmt::format("{:.1f} s", std::max(seconds, 0.0));
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return fmt::format("{}:{:02}:{:02}", whole / kHour, whole % kHour / 60, whole % 60);
}

std::string time_text(double unix_seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

std::string share_text(double share) {
  constexpr double kPercent = 100;
  return fmt::format("{:.1f} %", std::isfinite(share) ? share * kPercent : 0.0);
}

std::string headline(const RunReport& report) {
  const auto nodes = report.nodes.size();
  const auto rounds = report.rounds.size();
  return fmt::format("{}: {} node{}, {} round{}, {}: {}", shown_text(report.run_id), nodes,
                     nodes == 1 ? "" : "s", rounds, rounds == 1 ? "" : "s",
                     duration_text(report.seconds()), shown_text(report.end_text));
}

std::string report_text(const RunReport& report) {
  const std::string effective =
      report.counts_steps()
          ? fmt::format("effective time {}: {} of {} in {} steps\n", share_text(report.effective()),
                        duration_text(report.step_seconds), duration_text(report.seconds()),
                        report.steps)
          : "effective time unknown: the program counts no steps\n";
  return fmt::format("{}\n{}\n{}\n{}{}{}\n{}", headline(report), effective, time_table(report),
                     round_table(report), standstill_table(report), straggler_table(report),
                     node_table(report));
}

std::string report_json(const RunReport& report) {
  Json json = {{"schema", 1},
               {"job", report.run_id},
               {"began", report.began},
               {"ended", report.ended},
               {"has_end", report.has_end},
               {"succeeded", report.succeeded},
               {"end", report.end_text},
               {"wall_s", report.seconds()},
               {"steps", report.steps},
               {"steps_s", report.step_seconds},
               {"effective", nullptr},
               {"time", Json::array()},
               {"rounds", Json::array()},
               {"nodes", Json::array()}};
  if (report.counts_steps()) json["effective"] = report.effective();
  for (const TimeShare& one : report.time)
    json["time"].push_back({{"what", one.what}, {"seconds", one.seconds}, {"times", one.times}});
  for (const ReportedRound& round : report.rounds) json["rounds"].push_back(round_json(round));
  for (const ReportedNode& node : report.nodes)
    json["nodes"].push_back({{"hostname", node.hostname},
                             {"folders", node.folders},
                             {"rounds", node.rounds},
                             {"blamed", node.blamed},
                             {"recurs", node.blamed > 1},
                             {"clock_ahead_s", node.clock_ahead}});
  // Names that people chose may be no UTF-8. ASCII alone: a terminal obeys nothing in it.
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::launcher
