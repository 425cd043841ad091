// The same training by any of the ways: curves of the test loss, and counted bytes beside the
// formulas.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/common/program.h"
#include "examples/updates/learner.h"
#include "examples/updates/sums.h"

namespace ddprun::examples {

struct UpdatesRun {
  Process& process;
  int steps, hidden;
  double lr;
  std::vector<std::string> rows = {"way,seconds,loss"};  // of all curves; rank 0's

  Collective& ranks() { return *process.collective; }
};

// Test losses by time.
class Curve {
 public:
  Curve(UpdatesRun& run, std::string way) : run_(run), way_(std::move(way)) {}
  void add(double loss) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    run_.rows.push_back(fmt::format("\"{}\",{:.6f},{:.6f}", way_, seconds.count(), loss));
    last_ = loss;
  }
  // The heading of what is said about the way.
  void say_end() const { say(run_.process, fmt::format("{}: test loss {:.4f}", way_, last_)); }

 private:
  UpdatesRun& run_;
  std::string way_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double last_ = 0;
};

// All numbers must be what the formula says; else the example has failed.
inline void say_counted(UpdatesRun& run, std::string_view what,
                        const std::vector<std::uint64_t>& counted, std::uint64_t formula) {
  for (const auto number : counted) {
    if (number != formula)
      throw std::logic_error(fmt::format("{}: {} bytes, expected {}", what, number, formula));
  }
  say(run.process,
      fmt::format("  {}: {} bytes a step = {}", what, fmt::join(counted, ", "), formula));
}

// Each rank's number, by rank. All ranks must call it.
inline std::vector<std::uint64_t> of_all(Collective& ranks, std::uint64_t mine) {
  std::vector<std::uint64_t> numbers;
  for (const auto& bytes : ranks.all_gather_bytes(std::as_bytes(std::span(&mine, 1))))
    std::memcpy(&numbers.emplace_back(), bytes.data(), sizeof(mine));
  return numbers;
}

// Each step: gradients, `sum(links, gradient)`, one step of everybody. Returns what travelled in
// one step.
template <typename Sum>
CountedLinks train_together(UpdatesRun& run, const std::string& way, const Sum& sum) {
  Learner learner(run.ranks().rank(), run.hidden);
  const std::size_t size = learner.size();
  const auto memory = run.ranks().allocate(size * sizeof(float));
  const std::span gradient(reinterpret_cast<float*>(memory.get()), size);
  std::vector<float> parameters(size);
  learner.read_parameters(parameters);
  CountedLinks links(run.ranks());
  run.ranks().barrier();
  Curve curve(run, way);
  const auto rate = static_cast<float>(run.lr / run.ranks().world_size());
  for (int step = 0; step < run.steps; ++step) {
    learner.gradient(step, gradient);
    sum(links, gradient);
    for (std::size_t i = 0; i < size; ++i) parameters[i] -= rate * gradient[i];
    learner.write_parameters(parameters);
    if (run.ranks().rank() == 0) curve.add(learner.test_loss());
  }
  curve.say_end();
  links.sent /= static_cast<std::uint64_t>(run.steps);
  links.received /= static_cast<std::uint64_t>(run.steps);
  return links;
}

}  // namespace ddprun::examples
