// The last sample of a worker's steps, as its hook leaves it (agent/standby/python/steps.py). It is
// one line with tabs between its fields, which are those of rendezvous::StepSample:
//
//   number, group, members, steps, calls, step_us, cpu_wait, the five of spread, called_us with
//   commas in it
//
// The numbers count from 1. Nothing in it is trusted to be well formed. Pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// A file has so much at most.
inline constexpr std::size_t kMostStepFileBytes = 1024;

struct NumberedSample {
  std::int64_t number = 0;
  rendezvous::StepSample sample{};  // without its rank
};

// Nothing if it is no such line.
std::optional<NumberedSample> parse_step_file(std::string_view text);

}  // namespace ddprun::agent
