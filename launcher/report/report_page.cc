#include "launcher/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/shown_text.h"
#include "launcher/report/report_text.h"

namespace ddprun::launcher {
namespace {

constexpr double kWidth = 1000;  // of the timeline, in SVG's units
constexpr double kNameWidth = 150;
constexpr double kRowHeight = 18;
constexpr double kBarHeight = 12;
constexpr double kLeastWidth = 1.5;  // a short round is still seen

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{0}</title>
<style>
:root {{ color-scheme: light dark; --text: #1b1f24; --soft: #667; --line: #d5d9e0; --back: #fff;
  --steps: #2a78b8; --round: #b9d3e8; --broke: #c5402a; --still: #b07a00; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e6e8eb; --soft: #9aa3ad; --line: #3a4048;
  --back: #15181c; --steps: #58a6e0; --round: #2b4a61; --broke: #ff7b62; --still: #e0b040; }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem; }}
p.lead {{ margin: .3rem 0; color: var(--soft); overflow-wrap: anywhere; }}
p.share {{ font-size: 2rem; margin: 1rem 0 0; }}
div.wide {{ overflow-x: auto; }}
tr {{ box-shadow: 0 1px var(--line); }}
table {{ width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .25rem .8rem .25rem 0;
  vertical-align: top; overflow-wrap: anywhere; }}
th {{ color: var(--soft); font-weight: 500; white-space: nowrap; }}
td.n {{ white-space: nowrap; }}
svg {{ width: 100%; height: auto; display: block; }}
svg text {{ fill: var(--text); font-size: 11px; }}
.soft {{ fill: var(--soft); }} .round {{ fill: var(--round); }} .steps {{ fill: var(--steps); }}
.broke {{ fill: var(--broke); }} .still {{ fill: var(--still); }}
</style></head><body>
<h1>{0}</h1>
<p class="lead">{1}</p>
)";

// ---- tables ----

using Cells = std::vector<std::string>;  // escaped

std::string row(const Cells& cells, const char* tag) {
  std::string text = "<tr>";
  // All but the last are short, and stay on one line.
  for (const std::string& cell : cells)
    text +=
        fmt::format("<{}{}>{}</{}>", tag, &cell == &cells.back() ? "" : " class=\"n\"", cell, tag);
  return text + "</tr>\n";
}

std::string section(const std::string& title, const Cells& head, const std::vector<Cells>& rows) {
  std::string text =
      fmt::format("<h2>{}</h2>\n<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n", title,
                  row(head, "th"));
  for (const Cells& cells : rows) text += row(cells, "td");
  return text + "</tbody></table></div>\n";
}

std::string time_section(const RunReport& report) {
  std::vector<Cells> rows;
  for (const TimeShare& one : report.time) {
    const double share = report.seconds() > 0 ? one.seconds / report.seconds() : 0;
    const std::string bar = fmt::format(
        "<svg viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" style=\"height:.6rem\" "
        "aria-hidden=\"true\">"
        "<rect class=\"{}\" width=\"{:.2f}\" height=\"6\"/></svg>",
        one.what == "steps" ? "steps" : "still", share * 100);
    rows.push_back({escaped(one.what), duration_text(one.seconds), share_text(share),
                    one.times == 0 ? "" : fmt::format("{}", one.times), bar});
  }
  return section("Where the time went", {"in", "time", "share", "times", ""}, rows);
}

std::string round_section(const RunReport& report, std::size_t first) {
  std::vector<Cells> rows;
  for (std::size_t i = first; i < report.rounds.size(); ++i) {
    const RoundFact& round = report.rounds[i].fact;
    rows.push_back({fmt::format("{}", round.number), time_text(round.began),
                    duration_text(round.ended.value_or(report.ended) - round.began),
                    fmt::format("{}", round.nodes), fmt::format("{}", round.world_size),
                    round.steps == 0 ? "" : fmt::format("{}", round.steps),
                    escaped(report.rounds[i].why_ended)});
  }
  return section("Rounds",
                 {"round", "began (UTC)", "lasted", "nodes", "ranks", "steps", "ended by"}, rows);
}

std::string standstill_section(const RunReport& report, std::size_t first) {
  std::vector<Cells> rows;
  for (std::size_t i = first; i < report.rounds.size(); ++i)
    for (const StandstillFact& one : report.rounds[i].fact.standstills)
      rows.push_back({fmt::format("{}", report.rounds[i].fact.number), time_text(one.time),
                      one.went_on_after ? duration_text(*one.went_on_after) : "",
                      escaped(one.sentence)});
  if (rows.empty()) return {};
  return section("Standstills", {"round", "told (UTC)", "went on after", "what was said"}, rows);
}

std::string straggler_section(const RunReport& report, std::size_t first) {
  std::vector<Cells> rows;
  for (std::size_t i = first; i < report.rounds.size(); ++i)
    for (const StragglerFact& one : report.rounds[i].fact.stragglers)
      rows.push_back({fmt::format("{}", report.rounds[i].fact.number), time_text(one.time),
                      escaped(one.sentence)});
  if (rows.empty()) return {};
  return section("Stragglers", {"round", "told (UTC)", "what was said"}, rows);
}

std::string node_section(const RunReport& report) {
  std::vector<Cells> rows;
  for (const ReportedNode& node : report.nodes) {
    if (rows.size() == kMostDrawnNodes) break;
    rows.push_back({escaped(node.hostname), fmt::format("{}", node.rounds),
                    fmt::format("{}{}", node.blamed, node.blamed > 1 ? ", recurs" : ""),
                    fmt::format("{:+.3f} s", node.clock_ahead), escaped(node.folders.front())});
  }
  return section("Nodes", {"node", "rounds", "to blame", "clock", "logs"}, rows);
}

// ---- the timeline ----

class Timeline {
 public:
  Timeline(const RunReport& report, std::size_t first)
      : report_(report),
        begin_(first == 0 ? report.began : report.rounds[first].fact.began),
        first_round_(report.rounds[first].fact.number) {}

  std::string draw() const {
    const std::size_t count = std::min(report_.nodes.size(), kMostDrawnNodes);
    const double height = kRowHeight * static_cast<double>(count + 1);
    std::string text = fmt::format(
        "<h2>Rounds of each node</h2>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"Rounds of each node over time\">\n",
        kWidth, height);
    for (std::size_t i = 0; i < count; ++i)
      text += node(report_.nodes[i], kRowHeight * static_cast<double>(i));
    text += standstills(height - kRowHeight);
    return text +
           fmt::format(
               "<text class=\"soft\" x=\"{}\" y=\"{}\">{}</text>"
               "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n</svg>\n"
               "<p class=\"lead\">light: a round; blue: from its first step to its last; "
               "red: it broke; yellow: a standstill was told</p>\n",
               kNameWidth, height - 4, time_text(begin_), kWidth, height - 4,
               time_text(report_.ended));
  }

 private:
  double place_of(double time) const {
    const double all = std::max(report_.ended - begin_, 1e-3);
    return kNameWidth + (kWidth - kNameWidth) * std::clamp((time - begin_) / all, 0.0, 1.0);
  }
  std::string bar(const char* kind, double from, double to, double top, double height) const {
    const double left = place_of(from);
    return fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>",
                       kind, left, top, std::max(place_of(to) - left, kLeastWidth), height);
  }
  std::string node(const ReportedNode& node, double top) const {
    std::string text = fmt::format("<text x=\"0\" y=\"{}\">{}{}</text>", top + kBarHeight - 1,
                                   escaped(node.hostname.substr(0, kNameBytes)),
                                   node.hostname.size() > kNameBytes ? "…" : "");
    for (const ReportedNode::Span& span : node.spans) {
      if (span.round < first_round_) continue;
      text += fmt::format("<g><title>round {}</title>", span.round);
      text += bar("round", span.began, span.ended, top, kBarHeight);
      if (span.first_step > 0)
        text += bar("steps", span.first_step, span.last_step, top + 3, kBarHeight - 6);
      if (span.broke) text += bar("broke", span.ended, span.ended, top, kBarHeight);
      text += "</g>";
    }
    return text + "\n";
  }
  std::string standstills(double height) const {
    std::string text;
    for (const ReportedRound& round : report_.rounds) {
      if (round.fact.number < first_round_) continue;
      for (const StandstillFact& one : round.fact.standstills)
        text += fmt::format("<g><title>{}</title>{}</g>", escaped(one.sentence),
                            bar("still", one.time, one.time, 0, height));
    }
    return text + "\n";
  }

  static constexpr std::size_t kNameBytes = 22;
  const RunReport& report_;
  const double begin_;
  const std::int64_t first_round_;
};

std::string share(const RunReport& report) {
  if (!report.counts_steps())
    return "<p class=\"lead\">effective time unknown: the program counts no steps</p>\n";
  return fmt::format(
      "<p class=\"share\">{} effective</p>\n<p class=\"lead\">{} of {} in {} steps</p>\n",
      share_text(report.effective()), duration_text(report.step_seconds),
      duration_text(report.seconds()), report.steps);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char byte : shown_text(text)) {
    switch (byte) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += byte;
    }
  }
  return safe;
}

std::string report_page(const RunReport& report) {
  const std::size_t first = report.rounds.size() - std::min(report.rounds.size(), kMostDrawnRounds);
  std::string page = fmt::format(kHead, escaped("job " + report.run_id), escaped(headline(report)));
  page += share(report) + Timeline(report, first).draw() + time_section(report) +
          round_section(report, first) + standstill_section(report, first) +
          straggler_section(report, first) + node_section(report);
  if (first > 0 || report.nodes.size() > kMostDrawnNodes)
    page += fmt::format("<p class=\"lead\">left out: {} rounds before these, {} nodes</p>\n", first,
                        report.nodes.size() - std::min(report.nodes.size(), kMostDrawnNodes));
  return page + "</body></html>\n";
}

}  // namespace ddprun::launcher
