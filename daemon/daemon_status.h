// The report of ddprund about itself and its jobs over HTTP (--http), as pages/status_report.h has
// it. It only looks. Loop's thread; no state.
#pragma once

#include <string>
#include <vector>

#include "daemon/job_table.h"
#include "rendezvous/control/job_control.h"
#include "rendezvous/control/pages/status_report.h"
#include "rendezvous/host/host.h"

namespace ddprun::daemon {

// A job that is shown. Both belong to the daemon.
struct ShownJob {
  JobNumber number = 0;
  const rendezvous::Host* host = nullptr;
  const rendezvous::JobControl* control = nullptr;
};

struct DaemonFacts {
  std::string hostname;
  std::vector<ShownJob> jobs;  // each of another id
  bool leads = true;           // false: another ddprund of the group does, or none
  http::WallTime started{};
  bool hides_ids = false;  // an id is its job's token, and everybody can read the report
};

// A snapshot as a report has it. It tells of no sessions.
http::JobStatus job_status(const rendezvous::JobSnapshot& known);

http::StatusReport daemon_status(const DaemonFacts& facts);

}  // namespace ddprun::daemon
