#include "rendezvous/control/pages/status_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "rendezvous/control/pages/page_text.h"
#include "rendezvous/control/pages/rank_grid.h"
#include "rendezvous/control/pages/step_charts.h"
#include "rendezvous/control/pages/timeline_drawing.h"

namespace ddprun::http {
namespace {

constexpr std::string_view kStyle =
    "body{font:15px sans-serif;margin:1.5em;max-width:70em;color:#222;background:#fff}"
    "table{margin:.5em 0 1.5em}th,td{padding:.25em .9em .25em 0;text-align:left;"
    "vertical-align:top}th{font-weight:600}tbody tr:nth-child(odd){background:#8882}"
    ".worker{display:inline-block;margin:0 1.2em .4em 0}.worker p{font-size:12px;margin:.2em 0}"
    ".worker svg{margin:0}.line{fill:none;stroke:#1e88e5;stroke-width:1.5}"
    ".frame{fill:none;stroke:#8888}"
    "h2{margin-bottom:.2em}.bad{color:#b00020;font-weight:600}.small{color:#666}"
    "svg{display:block;max-width:100%;height:auto;margin:.6em 0;fill:currentColor}"
    ".run{fill:#2e7d32}.stuck{fill:#b00020}.held{fill:#8d6e00}.ok{fill:#1565c0}.wait{fill:#757575}"
    ".spare{fill:#5c6bc0}.end{fill:#c04a00}rect{stroke:#fff;stroke-width:.5}"
    ".sign{font:10px sans-serif;fill:#fff;text-anchor:middle}.host{font:11px sans-serif}"
    ".late{font:11px sans-serif;text-anchor:end}.middle{font:11px sans-serif;text-anchor:middle}"
    ".axis{stroke:currentColor;fill:none}ul.states{list-style:none;padding:0}"
    ".key{display:inline-block;width:1.4em;text-align:center;color:#fff}"
    ".key.run{background:#2e7d32}.key.stuck{background:#b00020}.key.held{background:#8d6e00}"
    ".key.ok{background:#1565c0}.key.wait{background:#757575}.key.spare{background:#5c6bc0}"
    ".key.end{background:#c04a00}summary{cursor:pointer}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}"
    ".small{color:#999}p.bad{color:#ff6b6b}rect{stroke:#161616}}";

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
    if (report_.node) add_step_charts(*report_.node, text_);
    text_ += "</body></html>\n";
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    http::add(text_, format, std::forward<Args>(args)...);
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
    if (!job.standstill.empty()) add("<p class=bad>Stands still: {}</p>\n", shown(job.standstill));
    add_rank_grid(job, cells_, text_);
    add_timeline(job, report_.now, marks_, text_);
    seats(job);
    reasons(job);
    add("</section>\n");
  }

  void seats(const JobStatus& job) {
    if (job.seats.empty()) return;
    add("<details{}><summary>Nodes</summary>\n", job.seats.size() > kMostNodesOpen ? "" : " open");
    add("<table class=seats><thead><tr><th>Node rank<th>Host<th>Ranks<th>State</tr></thead>"
        "<tbody>\n");
    const std::size_t room = kMostSeatsShown - std::min(seats_shown_, kMostSeatsShown);
    const std::size_t count = std::min(room, job.seats.size());
    for (std::size_t i = 0; i < count; ++i) {
      const SeatStatus& seat = job.seats[i];
      add("<tr><td>{}<td>{}<td>{}<td>{}</tr>\n",
          seat.node_rank < 0 ? "–" : std::to_string(seat.node_rank),
          shown(seat.hostname, kMostNameShown), ranks(seat), shown(seat.state, kMostNameShown));
    }
    seats_shown_ += count;
    add("</tbody></table>\n");
    left_out("node", job.seats.size(), count);
    add("</details>\n");
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
  std::size_t cells_ = kMostCells;  // so many may still be drawn, as the next ones
  std::size_t marks_ = kMostMarks;
};

}  // namespace

std::string status_page(const StatusReport& report) { return Page(report).text(); }

}  // namespace ddprun::http
