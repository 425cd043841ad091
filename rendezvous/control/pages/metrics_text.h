// A status report in Prometheus' text format (version 0.0.4). docs/metrics.md has each metric.
// Nothing grows with the number of nodes: there are counts of them and no names. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
// So many jobs have metrics of their own: the first ones of the report. All are counted.
inline constexpr std::size_t kMostJobsMeasured = 1000;

std::string metrics_text(const StatusReport& report);

}  // namespace ddprun::http
