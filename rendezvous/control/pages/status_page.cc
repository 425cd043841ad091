#include "rendezvous/control/pages/status_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/net/http/escape.h"
#include "base/shown_text.h"

namespace ddprun::http {
namespace {

constexpr std::string_view kStyle =
    "body{font:15px sans-serif;margin:1.5em;max-width:70em;color:#222;background:#fff}"
    "table{margin:.5em 0 1.5em}th,td{padding:.25em .9em .25em 0;text-align:left;"
    "vertical-align:top}th{font-weight:600}tbody tr:nth-child(odd){background:#8882}"
    "h2{margin-bottom:.2em}.bad{color:#b00020;font-weight:600}.small{color:#666}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}"
    ".small{color:#999}.bad{color:#ff6b6b}}";

std::string shown(std::string_view text) { return escape_html(shown_text(text, kMostTextShown)); }

// "2026-11-24 21:39:15 UTC"
std::string when(WallTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

// "4 h 12 min 5 s"
std::string for_how_long(std::chrono::nanoseconds length) {
  const auto seconds =
      std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::seconds>(length).count(), 0);
  std::string text;
  if (seconds >= 3600) text += fmt::format("{} h ", seconds / 3600);
  if (seconds >= 60) text += fmt::format("{} min ", seconds / 60 % 60);
  return text + fmt::format("{} s", seconds % 60);
}

// "0–3", "4", "–"
std::string ranks(const SeatStatus& seat) {
  if (seat.first_rank < 0 || seat.workers < 1) return "–";
  if (seat.workers == 1) return std::to_string(seat.first_rank);
  return fmt::format("{}–{}", seat.first_rank, seat.first_rank + seat.workers - 1);
}

class Page {
 public:
  explicit Page(const StatusReport& report) : report_(report) {}

  std::string text() {
    head();
    for (std::size_t i = 0; i < std::min(report_.jobs.size(), kMostJobsShown); ++i)
      job(report_.jobs[i]);
    left_out("job", report_.jobs.size(), kMostJobsShown);
    text_ += "</body></html>\n";
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void left_out(std::string_view what, std::size_t all, std::size_t most) {
    if (all > most)
      add("<p class=small>{} more {}{} not shown</p>\n", all - most, what,
          all - most == 1 ? " is" : "s are");
  }

  void head() {
    add("<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content=\"width=device-width\">"
        "<meta http-equiv=refresh content={}>"
        "<title>{} on {}</title><style>{}</style></head><body>\n",
        kPageReloadSeconds, shown(report_.program), shown(report_.hostname), kStyle);
    add("<h1>{} on {}</h1>\n", shown(report_.program), shown(report_.hostname));
    if (report_.unhealthy.empty()) {
      add("<p id=health>healthy");
    } else {
      add("<p id=health class=bad>not healthy: {}", shown(report_.unhealthy));
    }
    add("</p>\n<p class=small>{}; up for {}; {}; <a href=\"/metrics\">metrics</a></p>\n",
        when(report_.now), for_how_long(report_.now - report_.started),
        report_.is_leader ? "the rendezvous is in this process"
                          : "the rendezvous is in another process");
    if (report_.node) node(*report_.node);
  }

  void node(const NodeStatus& node) {
    add("<p>{} worker{} of this node run{}; its store holds {} key{}, {} bytes</p>\n",
        node.workers_running, node.workers_running == 1 ? "" : "s",
        node.workers_running == 1 ? "s" : "", node.store.keys, node.store.keys == 1 ? "" : "s",
        node.store.bytes);
  }

  void job(const JobStatus& job) {
    const std::string range = job.min_nodes == job.max_nodes
                                  ? std::to_string(job.max_nodes)
                                  : fmt::format("{}:{}", job.min_nodes, job.max_nodes);
    add("<section class=job><h2>Job <span class=id>{}</span></h2>\n", shown(job.id));
    add("<p>State <span class=state>{}</span>, round <span class=round>{}</span>, {} of {} nodes, "
        "{} workers, restarts <span class=restarts>{}</span> of {}",
        shown(job.state), job.round, job.nodes_in_round, range, job.world_size, job.restarts,
        job.max_restarts);
    if (job.nodes_waiting) add(", waiting nodes {}", *job.nodes_waiting);
    if (job.spares) add(", spares {}", *job.spares);
    add("</p>\n");
    seats(job);
    reasons(job);
    add("</section>\n");
  }

  void seats(const JobStatus& job) {
    if (job.seats.empty()) return;
    add("<table class=seats><thead><tr><th>Node rank<th>Host<th>Ranks<th>State</tr></thead>"
        "<tbody>\n");
    const std::size_t room = kMostSeatsShown - std::min(seats_shown_, kMostSeatsShown);
    const std::size_t count = std::min(room, job.seats.size());
    for (std::size_t i = 0; i < count; ++i) {
      const SeatStatus& seat = job.seats[i];
      add("<tr><td>{}<td>{}<td>{}<td>{}</tr>\n",
          seat.node_rank < 0 ? "–" : std::to_string(seat.node_rank), shown(seat.hostname),
          ranks(seat), shown(seat.state));
    }
    seats_shown_ += count;
    add("</tbody></table>\n");
    left_out("node", job.seats.size(), count);
    if (!job.knows_all_seats)
      add("<p class=small>This node knows its own seat alone; the node with the rendezvous knows "
          "all.</p>\n");
  }

  void reasons(const JobStatus& job) {
    add("<h3>Last reasons</h3>\n");
    if (job.reasons.empty()) {
      add("<p class=small>Nothing has broken a round.</p>\n");
      return;
    }
    add("<table class=reasons><thead><tr><th>When<th>Why</tr></thead><tbody>\n");
    for (std::size_t i = 0; i < std::min(job.reasons.size(), kMostReasonsShown); ++i)
      add("<tr><td>{}<td>{}</tr>\n", when(job.reasons[i].when), shown(job.reasons[i].text));
    add("</tbody></table>\n");
  }

  const StatusReport& report_;
  std::string text_;
  std::size_t seats_shown_ = 0;
};

}  // namespace

std::string status_page(const StatusReport& report) { return Page(report).text(); }

}  // namespace ddprun::http
