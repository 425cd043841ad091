// `ddprun doctor` and --check: from the options of a job to what is said of this node. A shell
// around gather.h and judge.h. A question that may never be answered goes to a child
// (launcher/scheduler/run_child.h). So this process has no thread afterwards, and all is said in
// time. Main thread, at start.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/doctor/examination.h"
#include "launcher/doctor/findings.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/job/command.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// From the start of this process: for a file that is named doctor, and for all of a node.
inline constexpr std::chrono::milliseconds kFileLimit{1000};
inline constexpr std::chrono::milliseconds kNodeLimit{2500};

// `ddprun [options] doctor [--json] [SCRIPT]`.
struct DoctorCall {
  bool json = false;
  std::string script{};  // empty: none was named
};

// Nothing if `options` ask for a job. A file that is named doctor is a script like any other; it
// must be seen by `end`. Error: the words behind `doctor` are not those above; exit code 2.
std::optional<Result<DoctorCall>> doctor_call(const Options& options, const CommandFacts& files,
                                              std::chrono::steady_clock::time_point end);

// Returns the question about this node. `script`: as in DoctorCall. `accelerators`: of
// HostFacts.
NodeQuestion node_question(const Options& options, const std::string& script, const EnvLookup& env,
                           const Accelerators& accelerators);

// Examines the node. A question that is not answered by `end` is reported as such.
Examination examine_node(const NodeQuestion& question, const CommandFacts& files,
                         std::chrono::steady_clock::time_point end);

// Returns whether nodes can meet by what was found of this one. Else they would wait in vain.
bool can_meet(const Findings& findings);

}  // namespace ddprun::launcher
