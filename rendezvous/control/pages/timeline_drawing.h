// The last rounds, incidents and standstills of a job as bars and marks above one axis of time.
// Each has a title. For a screen reader it is an item of a list. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

// More of each are not drawn; the oldest go first.
inline constexpr std::size_t kMostPeriodsShown = 32;
inline constexpr std::size_t kMostReasonsShown = 16;
// All jobs of a page together have room for so many bars and marks.
inline constexpr std::size_t kMostMarks = 1024;

// Nothing if nothing has happened yet. `marks`: the room that is left on the page; what is drawn is
// taken off. A job without room gets no drawing.
void add_timeline(const JobStatus& job, WallTime now, std::size_t& marks, std::string& page);

}  // namespace ddprun::http
