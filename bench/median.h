// How long a step takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace ddprun::bench {

// The median seconds of `steps` calls, the upper of the middle two, after `warm_ups` calls that are
// not counted. `steps` is at least 1.
template <typename Step>
double median_seconds(int warm_ups, int steps, const Step& step) {
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= warm_ups) seconds.push_back(took.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + steps / 2, seconds.end());
  return seconds[static_cast<std::size_t>(steps) / 2];
}

}  // namespace ddprun::bench
