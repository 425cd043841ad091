#include "rendezvous/control/pages/step_charts.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "base/duration.h"
#include "rendezvous/control/pages/page_text.h"

namespace ddprun::http {
namespace {

constexpr double kChartWidth = 320;
constexpr double kChartHeight = 32;
constexpr double kChartGap = 6;  // between a worker's two charts

using Value = double StepSample::*;

std::span<const StepSample> newest(const WorkerStatus& worker) {
  const std::size_t count = std::min(worker.samples.size(), kMostSamples);
  return std::span(worker.samples).last(count);
}

double highest(std::span<const WorkerStatus> workers, Value value) {
  double most = 0;
  for (const WorkerStatus& worker : workers)
    for (const StepSample& one : newest(worker)) most = std::max(most, one.*value);
  return most;
}

// "3.2 GiB"
std::string memory_text(std::uint64_t bytes) {
  constexpr double kMebi = 1 << 20;
  const double mebi = static_cast<double>(bytes) / kMebi;
  return mebi < 1024 ? fmt::format("{:.0f} MiB", mebi) : fmt::format("{:.1f} GiB", mebi / 1024);
}

// "81.3 ms"
std::string time_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1000) : fmt::format("{:.3g} s", seconds);
}

std::string caption(const WorkerStatus& worker) {
  std::string text = fmt::format("rank {}", worker.rank);
  if (worker.steps) {
    add(text, ": {}", counted(*worker.steps, "step"));
  } else {
    text += ": counts no steps";
  }
  if (!worker.samples.empty() && worker.steps) {
    const StepSample& last = worker.samples.back();
    add(text, ", {:.3g} a second", last.per_second);
    if (last.step_s > 0) add(text, ", {} each", time_text(last.step_s));
  }
  if (worker.memory_bytes) add(text, ", {}", memory_text(*worker.memory_bytes));
  return text;
}

// A line through the samples that have the value; it is broken where one has none.
void add_line(std::string& page, const WorkerStatus& worker, Value value, double most, double top) {
  std::string line;
  bool goes_on = false;
  for (const StepSample& one : newest(worker)) {
    const bool is_known = value == &StepSample::per_second || one.*value > 0;
    const double part = std::clamp(1 - one.age_s / in_seconds(kChartLength), 0.0, 1.0);
    const double height = most > 0 ? std::clamp(one.*value / most, 0.0, 1.0) : 0;
    if (is_known)
      add(line, "{}{:.4g} {:.4g}", goes_on ? 'L' : 'M', part * kChartWidth,
          top + kChartHeight * (1 - height));
    goes_on = is_known;
  }
  add(page, "<path class=\"frame\" d=\"M0 {:.4g}v{:.4g}h{:.4g}\"/>", top, kChartHeight,
      kChartWidth);
  if (!line.empty()) add(page, "<path class=\"line\" d=\"{}\"/>", line);
}

struct Scale {
  double per_second = 0;
  double step_s = 0;
};

void add_chart(std::string& page, const WorkerStatus& worker, const Scale& scale) {
  const std::string words = caption(worker);
  add(page, "<div class=\"worker\"><p>{}</p>\n", words);
  if (!worker.samples.empty() && worker.steps) {
    const double height = 2 * kChartHeight + kChartGap + 2;
    add(page,
        "<svg role=\"img\" aria-label=\"{0}\" viewBox=\"-1 -1 {1:.4g} {2:.4g}\" width=\"{1:.4g}\" "
        "height=\"{2:.4g}\">",
        words, kChartWidth + 2, height);
    add_line(page, worker, &StepSample::per_second, scale.per_second, 0);
    add_line(page, worker, &StepSample::step_s, scale.step_s, kChartHeight + kChartGap);
    page += "</svg>\n";
  }
  page += "</div>\n";
}

}  // namespace

void add_step_charts(const NodeStatus& node, std::string& page) {
  if (node.workers.empty()) return;
  const auto drawn = std::span(node.workers).first(std::min(node.workers.size(), kMostCharts));
  const Scale scale{highest(drawn, &StepSample::per_second), highest(drawn, &StepSample::step_s)};
  page += "<section class=\"workers\"><h2>Workers of this node</h2>\n";
  if (scale.per_second > 0)
    add(page,
        "<p class=small>The last {} min; above steps a second, up to {:.3g}; below the time of a "
        "step, up to {}.</p>\n",
        std::chrono::duration_cast<std::chrono::minutes>(kChartLength).count(), scale.per_second,
        time_text(scale.step_s));
  for (const WorkerStatus& worker : drawn) add_chart(page, worker, scale);
  if (drawn.size() < node.workers.size())
    add(page, "<p class=small>{} not shown</p>\n",
        counted(node.workers.size() - drawn.size(), "more worker"));
  page += "</section>\n";
}

}  // namespace ddprun::http
