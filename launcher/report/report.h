// `ddprun report [--json] [--html FILE] LOGDIR…`: from the command line to what is printed. Main
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/job/command.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

struct ReportCall {
  bool json = false;
  std::string html{};  // a file for the page; empty: none
  std::vector<std::string> folders{};
};

// Nothing if `options` ask for a job. A file that is named report is a script like any other.
// Error: the words behind `report` are not those above; exit code 2.
std::optional<Result<ReportCall>> report_call(const Options& options, const CommandFacts& files);

// Writes the page, if one is wanted. Returns the text for stdout. Errors: a folder without a
// history, or a file that cannot be written.
Result<std::string> run_report(const ReportCall& call);

}  // namespace ddprun::launcher
