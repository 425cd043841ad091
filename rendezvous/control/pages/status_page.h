// A status report as one HTML page for people. It shows jobs, their nodes and ranks, a timeline,
// and the last reasons with their times. The page needs nothing but itself: no script, no style
// sheet, no picture from elsewhere. It loads itself anew every few seconds. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

inline constexpr std::string_view kPageType = "text/html; charset=utf-8";
inline constexpr int kPageReloadSeconds = 5;
// The page shows so many at most, and says how many it leaves out.
inline constexpr std::size_t kMostJobsShown = 200;
inline constexpr std::size_t kMostSeatsShown = 1000;  // on the whole page
// The table of a job with more nodes is shown when the reader opens it.
inline constexpr std::size_t kMostNodesOpen = 16;

std::string status_page(const StatusReport& report);

}  // namespace ddprun::http
