// The steps of a node's workers during the last minutes as small charts of one scale. Above each
// one the newest figures stand as words. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

// More workers are not drawn, and of each not more than its newest samples.
inline constexpr std::size_t kMostCharts = 64;
inline constexpr std::size_t kMostSamples = 128;

// Nothing if no worker runs.
void add_step_charts(const NodeStatus& node, std::string& page);

}  // namespace ddprun::http
