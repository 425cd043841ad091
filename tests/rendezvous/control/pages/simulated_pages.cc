// Writes the status page of made-up jobs into a folder, one file for each size and state. Prints
// how large each is, and how long it took. Usage: simulated_pages FOLDER
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "base/duration.h"
#include "rendezvous/control/pages/status_page.h"
#include "tests/rendezvous/control/pages/simulated_report.h"

namespace ddprun::http {
namespace {

struct NamedState {
  std::string_view name;
  SimulatedState state;
};
constexpr std::array<NamedState, 4> kStates = {{{"nothing", SimulatedState::kNothing},
                                                {"running", SimulatedState::kRunning},
                                                {"standing_still", SimulatedState::kStandingStill},
                                                {"failed", SimulatedState::kFailed}}};
constexpr std::array<int, 5> kSizes = {1, 4, 64, 1000, 10'000};
constexpr int kViews = 20;

// In milliseconds; the median of the views.
double cost_of_view(const StatusReport& report) {
  std::array<double, kViews> costs{};
  for (double& cost : costs) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string page = status_page(report);
    cost = in_seconds(std::chrono::steady_clock::now() - begin) * 1000;
  }
  std::ranges::nth_element(costs, costs.begin() + kViews / 2);
  return costs[kViews / 2];
}

bool write_page(const std::string& folder, int nodes, const NamedState& state) {
  const StatusReport report = simulated_report(nodes, state.state);
  const std::string page = status_page(report);
  const std::string path = fmt::format("{}/{}_{}.html", folder, nodes, state.name);
  std::ofstream file(path, std::ios::binary);
  file << page;
  file.close();
  if (!file) return false;
  fmt::print("{:>6} nodes, {:<15} {:>7} bytes {:>8.3f} ms\n", nodes, state.name, page.size(),
             cost_of_view(report));
  return true;
}

int write_pages(const std::string& folder) {
  for (const int nodes : kSizes)
    for (const NamedState& state : kStates)
      if (!write_page(folder, nodes, state)) {
        fmt::print(stderr, "simulated_pages: cannot write into {}\n", folder);
        return 1;
      }
  return 0;
}

}  // namespace
}  // namespace ddprun::http

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: simulated_pages FOLDER\n");
    return 2;
  }
  return ddprun::http::write_pages(argv[1]);
}
