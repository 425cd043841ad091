// Training with the asynchronous server of async_server.h.
#pragma once

#include <fmt/format.h>

#include <vector>

#include "examples/updates/async_server.h"
#include "examples/updates/training.h"

namespace ddprun::examples {

// Trains as a rank other than 0: nobody but rank 0 matters to it.
inline void train_as_client(UpdatesRun& run, Learner& learner, Collective& pair) {
  CountedLinks links(pair);
  std::vector<float> numbers(learner.size());
  for (int step = 0; step < run.steps; ++step) {
    learner.gradient(step, numbers);
    links.send(numbers, 0);
    links.receive(numbers, 0);
    learner.write_parameters(numbers);
  }
}

// All ranks must call it. `formula`: bytes that rank 0 sends and receives while each rank makes one
// step.
inline void train_asynchronously(UpdatesRun& run, std::uint64_t formula) {
  Learner learner(run.ranks().rank(), run.hidden);
  const auto pairs = pairs_with_server(run.ranks());
  run.ranks().barrier();
  if (run.ranks().rank() != 0) {
    train_as_client(run, learner, *pairs.front());
    return run.ranks().barrier();
  }
  std::vector<float> numbers(learner.size());
  learner.read_parameters(numbers);
  SharedParameters parameters(numbers, static_cast<float>(run.lr / run.ranks().world_size()));
  auto threads = serve_all(pairs, parameters, run.steps);
  Curve curve(run, "parameter server, asynchronous");
  std::uint64_t seen = 0, bytes = 0;
  for (int step = 0; step < run.steps; ++step) {
    learner.gradient(step, numbers);
    parameters.update(numbers, seen);
    learner.write_parameters(numbers);
    curve.add(learner.test_loss());
  }
  for (auto& thread : threads) {
    const CountedLinks links = thread.get();
    bytes += links.sent + links.received;
  }
  learner.write_parameters(parameters.values());
  curve.add(learner.test_loss());
  run.ranks().barrier();
  curve.say_end();
  const auto steps = static_cast<std::uint64_t>(run.steps);
  say_counted(run, "rank 0 sends and receives 2(N-1)K", {bytes / steps}, formula);
  say(run.process,
      fmt::format("  stale updates: {} of {}", parameters.stale(), parameters.updates()));
}

}  // namespace ddprun::examples
