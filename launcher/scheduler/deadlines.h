// When the scheduler ends the job, and how long it waits between its request and SIGKILL. Slurm
// says neither in a variable everywhere, so its programs are asked. Pure: asking comes in as a
// function. Main thread, at start.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/scheduler/scheduler_facts.h"

namespace ddprun::launcher {

// Runs a program and answers what it prints. Nothing if it is not there, failed, or took too long.
using Ask = std::function<std::optional<std::string>(const std::vector<std::string>& words)>;

// The workers must be gone, and the report written, so long before SIGKILL.
inline constexpr std::chrono::seconds kReportTime{2};
// A scheduler that does not answer must not hold up a start.
inline constexpr std::chrono::milliseconds kAskLimit{1000};
// Slurm's KillWait where its configuration does not set one (slurm.conf(5)), or scontrol is silent.
inline constexpr std::chrono::seconds kSlurmKillWait{30};
// The wait of a pod if its terminationGracePeriodSeconds is not set.
inline constexpr std::chrono::seconds kPodKillWait{30};

// The grace of the workers that leaves us kReportTime. Nothing if it is not known how long the
// scheduler waits.
std::optional<std::chrono::seconds> grace_under(const SchedulerFacts& scheduler_facts,
                                                const Ask& ask);

// Nothing if the scheduler sets no end, or does not say it.
std::optional<std::chrono::sys_seconds> end_of_job(const SchedulerFacts& scheduler_facts,
                                                   const Ask& ask);

struct Deadlines {
  std::optional<std::chrono::seconds> grace{};
  std::optional<std::chrono::sys_seconds> ends_at{};
};

// Both of the above, asked at once. A Slurm that does not answer costs a start one limit, and not
// two. `ask` is called on two threads. Without `wants_grace` that question is left out.
Deadlines ask_deadlines(const SchedulerFacts& scheduler_facts, const Ask& ask, bool wants_grace);

// The program really runs, with our variables but the token, and no input. It is killed after
// `limit`, and what it prints beyond 64 KiB is dropped.
std::optional<std::string> run_program(const std::vector<std::string>& words,
                                       std::chrono::milliseconds limit = kAskLimit);

}  // namespace ddprun::launcher
