// What the user reads when a job failed: who failed first, how, and who was only stopped because of
// it. Pure text; torchrun's words and labels where it has them, so that log scrapers keep working.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/lifecycle.h"

namespace ddprun::agent {

struct ReportedWorker {
  EndedWorker worker;
  int rank = 0;                                  // global
  std::chrono::system_clock::time_point when{};  // of its end
  std::string error_file;                        // path; empty when there is none
};

struct ReportFacts {
  std::string entry;  // script or program as the user gave it
  std::string hostname;
  int attempt = 0;
  int max_restarts = 0;
  std::vector<ReportedWorker>
      workers{};  // that ended with a failure, in the order in which that was noticed
};

// The report of a node whose own worker failed; ends in a newline. Empty when no worker of this
// node failed by itself.
std::string failure_report(const ReportFacts& facts);

// One line for an ending whose cause is not a worker of this node.
std::string ending_line(const Ending& ending);

}  // namespace ddprun::agent
