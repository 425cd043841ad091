// A job's timeline as its report has it. Pure; any thread.
#pragma once

#include <cstdint>

#include "rendezvous/control/pages/status_report.h"
#include "rendezvous/core/timeline.h"

namespace ddprun::http {

// Milliseconds since 1970 as a time. A number that no clock says becomes the nearest that one may
// say.
WallTime wall_time(std::int64_t unix_ms);

// The periods of a job come in their order. One that is a standstill and lasts says that the job
// stands still, and why.
void add_period(const rendezvous::Period& period, JobStatus& job);

}  // namespace ddprun::http
