#include "rendezvous/control/pages/timeline_drawing.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "base/duration.h"
#include "rendezvous/control/pages/page_text.h"

namespace ddprun::http {
namespace {

constexpr double kLaneLabel = 80;    // left of the axis
constexpr double kAxisLength = 910;  // its length
constexpr double kLane = 20;
constexpr double kBar = 14;
constexpr double kShortestBar = 3;
constexpr std::chrono::seconds kShortestAxis{60};
constexpr std::size_t kMostTitleText = 200;  // bytes

std::span<const PeriodStatus> newest_periods(const JobStatus& job) {
  const std::size_t count = std::min(job.periods.size(), kMostPeriodsShown);
  return std::span(job.periods).last(count);
}

std::span<const ReasonStatus> newest_reasons(const JobStatus& job) {
  return std::span(job.reasons).first(std::min(job.reasons.size(), kMostReasonsShown));
}

class Drawing {
 public:
  Drawing(const JobStatus& job, WallTime now, std::string& page)
      : job_(job), now_(now), begin_(now - kShortestAxis), page_(page) {
    for (const PeriodStatus& one : newest_periods(job)) begin_ = std::min(begin_, one.begin);
    for (const ReasonStatus& one : newest_reasons(job)) begin_ = std::min(begin_, one.when);
  }

  void draw() {
    add(page_,
        "<svg class=\"timeline\" role=\"list\" aria-label=\"timeline\" "
        "viewBox=\"0 0 1000 {0:.5g}\" width=\"1000\" height=\"{0:.5g}\">\n",
        4 * kLane);
    label(0, "rounds");
    label(kLane, "incidents");
    label(2 * kLane, "standstills");
    for (const PeriodStatus& one : newest_periods(job_)) period(one);
    for (const ReasonStatus& one : newest_reasons(job_)) incident(one);
    axis();
    page_ += "</svg>\n";
  }

 private:
  // Times of the past that lie in the future are those of another clock.
  double place(WallTime time) const {
    const double part = in_seconds(time - begin_) / in_seconds(now_ - begin_);
    return kLaneLabel + kAxisLength * std::clamp(part, 0.0, 1.0);
  }

  void label(double y, std::string_view text) {
    add(page_, "<text class=\"host\" x=\"0\" y=\"{:.5g}\" aria-hidden=\"true\">{}</text>\n", y + 11,
        text);
  }

  void period(const PeriodStatus& one) {
    const WallTime end = one.end.value_or(now_);
    const double x = place(one.begin);
    const double width = std::max(place(end) - x, kShortestBar);
    const double y = one.is_round ? 0 : 2 * kLane;
    std::string title = one.is_round
                            ? fmt::format("round {}, {}", one.round,
                                          counted(static_cast<std::size_t>(one.workers), "worker"))
                            : "standstill: " + shown(one.text, kMostTitleText);
    add(title, "; {} {}, for {}", one.end ? "from" : "since", when(one.begin),
        for_how_long(end - one.begin));
    add(page_,
        "<g role=\"listitem\"><title>{}</title><rect class=\"{}\" x=\"{:.5g}\" y=\"{:.5g}\" "
        "width=\"{:.5g}\" height=\"{:.5g}\"/>",
        title, one.is_round ? "run" : "stuck", x, y, width, kBar);
    const std::string sign = one.is_round ? std::to_string(one.round) : "!";
    if (width > 8.0 * static_cast<double>(sign.size()))
      add(page_, "<text class=\"sign\" x=\"{:.5g}\" y=\"{:.5g}\" aria-hidden=\"true\">{}</text>",
          x + width / 2, y + 11, sign);
    page_ += "</g>\n";
  }

  void incident(const ReasonStatus& one) {
    const double x = place(one.when);
    add(page_,
        "<g role=\"listitem\"><title>{}; {}</title><path class=\"end\" "
        "d=\"M{:.5g} {:.5g}l6 {:.5g}h-12z\"/></g>\n",
        shown(one.text, kMostTitleText), when(one.when), x, kLane, kBar);
  }

  void axis() {
    const double y = 3 * kLane;
    add(page_, "<path class=\"axis\" d=\"M{:.5g} {:.5g}h{:.5g}\"/>\n", kLaneLabel, y, kAxisLength);
    constexpr int kMarks = 4;
    for (int i = 0; i <= kMarks; ++i) {
      const auto at = begin_ + (now_ - begin_) * i / kMarks;
      add(page_, "<text class=\"{}\" x=\"{:.5g}\" y=\"{:.5g}\" aria-hidden=\"true\">{}</text>\n",
          i == 0        ? "host"
          : i == kMarks ? "late"
                        : "middle",
          place(at), y + 13, time_of_day(at));
    }
  }

  const JobStatus& job_;
  const WallTime now_;
  WallTime begin_;
  std::string& page_;
};

}  // namespace

void add_timeline(const JobStatus& job, WallTime now, std::size_t& marks, std::string& page) {
  const std::size_t needed = newest_periods(job).size() + newest_reasons(job).size();
  if (needed == 0 || needed > marks) return;
  marks -= needed;
  Drawing(job, now, page).draw();
}

}  // namespace ddprun::http
