// The line through measured times: seconds = alpha + beta * bytes. Each time has the weight 1 /
// time^2, so that short ones count as much as long ones. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ddprun::examples {

struct Timing {
  double bytes = 0, seconds = 0;
};

struct Line {
  double alpha = 0, beta = 0;

  double at(double bytes) const { return alpha + beta * bytes; }
  // Returns how far a time lies from the line, as a share of it.
  double residual(const Timing& timed) const { return timed.seconds / at(timed.bytes) - 1; }
};

inline Line fit(const std::vector<Timing>& times) {
  double weights = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [bytes, seconds] : times) {
    const double weight = 1 / (seconds * seconds);
    weights += weight, x += weight * bytes, y += weight * seconds;
    xx += weight * bytes * bytes, xy += weight * bytes * seconds;
  }
  const double beta = (weights * xy - x * y) / (weights * xx - x * x);
  return {(y - beta * x) / weights, beta};
}

}  // namespace ddprun::examples
