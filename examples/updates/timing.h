// The time of a sum of S bytes by each way, and its fit to alpha + beta * S.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "examples/updates/line_fit.h"
#include "examples/updates/sums.h"
#include "examples/updates/training.h"

namespace ddprun::examples {

// The least of several times: what other programs do to a machine only adds.
inline double seconds_of(Collective& ranks, int times, const std::function<void()>& sum) {
  double least = std::numeric_limits<double>::infinity();
  for (int time = 0; time <= times; ++time) {
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    sum();
    ranks.barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (time > 0) least = std::min(least, seconds.count());  // the first one warms up
  }
  return least;
}

// Sums of 60 KiB, doubled up to `largest_kib`. All ranks must call it.
inline void say_times(UpdatesRun& run, int largest_kib, int times) {
  using Sum = std::function<void(CountedLinks&, std::span<float>)>;
  const std::vector<std::pair<std::string_view, Sum>> ways{
      {"parameter server", sum_at_server},
      {"ring", sum_around_ring},
      {"shared memory",
       [&](CountedLinks&, std::span<float> all) { sum_in_collective(run.ranks(), all); }}};
  constexpr std::size_t kKib = 256;  // floats
  for (const auto& [name, sum] : ways) {
    std::vector<Timing> measured;
    CountedLinks links(run.ranks());
    for (std::size_t kib = 60; kib <= static_cast<std::size_t>(largest_kib); kib *= 2) {
      const auto memory = run.ranks().allocate(kib * kKib * sizeof(float));
      const std::span all(reinterpret_cast<float*>(memory.get()), kib * kKib);
      measured.push_back({static_cast<double>(all.size_bytes()),
                          seconds_of(run.ranks(), times, [&] { sum(links, all); })});
    }
    const Line line = fit(measured);
    say(run.process,
        fmt::format("{}: {:.1f} us + S * {:.4f} ns", name, line.alpha * 1e6, line.beta * 1e9));
    for (const auto& timed : measured)
      say(run.process,
          fmt::format("  S {:>9.0f}: {:>9.1f} us, line {:>9.1f} us, residual {:>+6.1f} %",
                      timed.bytes, timed.seconds * 1e6, line.at(timed.bytes) * 1e6,
                      line.residual(timed) * 100));
  }
}

}  // namespace ddprun::examples
