// A run's report for people, and as JSON for programs. Pure. Any thread.
#pragma once

#include <string>

#include "launcher/report/run_report.h"

namespace ddprun::launcher {

// Ends in a newline. Nothing in it is obeyed by a terminal.
std::string report_text(const RunReport& report);
// One object. Its schema is in docs/report.md.
std::string report_json(const RunReport& report);

// "1:02:03" or "41.2 s".
std::string duration_text(double seconds);
// "2026-11-30 10:15:32" in UTC.
std::string time_text(double unix_seconds);
// "91.2 %"
std::string share_text(double share);
// One line: how the job ended, in how long, and the effective time.
std::string headline(const RunReport& report);

}  // namespace ddprun::launcher
