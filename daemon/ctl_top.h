// The text of `ddpctl top`: nodes and ranks of jobs by state, a timeline, the steps of ranks. Pure;
// any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "rendezvous/control/job_snapshot.h"
#include "rendezvous/control/pages/status_report.h"

namespace ddprun::daemon {

struct TopScreen {
  std::size_t columns = 100;
  std::size_t rows = 0;  // 0: no limit
  bool has_colours = false;
};

// The jobs as they were asked before, and how long ago. Rates are made of both.
struct TopBefore {
  std::vector<rendezvous::JobSnapshot> jobs{};
  std::chrono::duration<double> age{0};
};

// Each line ends with a newline. There are not more than the screen has: the last one says how many
// are left out.
std::string top_text(const std::vector<rendezvous::JobSnapshot>& jobs, const TopBefore& before,
                     const TopScreen& screen, http::WallTime now);

}  // namespace ddprun::daemon
