// Two looks at a worker, some seconds apart, and the evidence that they give. Pure. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "agent/standstill/witness_answer.h"
#include "rendezvous/core/standstill.h"

namespace ddprun::agent {

// A worker and the processes below it, at one moment.
struct ProcessLook {
  char state = '?';  // of the worker, as in ProcessStat
  // CPU time of all of them, also of those that have ended. And the bytes that their calls have
  // read and written.
  std::chrono::milliseconds cpu{0};
  std::uint64_t bytes = 0;
  std::int64_t major_faults = 0;  // pages that they had to read from a disk
  std::int64_t switches = 0;      // how often the main thread went to sleep
  std::string wait_channel{};     // the kernel function in which the worker sleeps
};

struct RankLook {
  bool has_ended_well = false;  // the process has exited 0
  bool has_witness = false;
  std::uint64_t steps = 0;
  // Those of a program on the engine, as in its WorkerPage.
  std::uint64_t calls_begun = 0;
  std::uint64_t calls_done = 0;
  ProcessLook process{};
  std::optional<WitnessAnswer> answer{};  // of the witness, if it came
  std::optional<WitnessAnswer> spied{};   // of py-spy, which knows no groups
};

// `passed`: between the looks, above 0.
rendezvous::RankEvidence evidence_of(const RankLook& first, const RankLook& second,
                                     std::chrono::nanoseconds passed);

}  // namespace ddprun::agent
