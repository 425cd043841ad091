// `ddprun doctor` and --check: from the options of a job to what is said of this node. A shell around
// gather.h and judge.h. Main thread, at start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/command.h"
#include "launcher/doctor/findings.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/doctor/pairs.h"
#include "launcher/options.h"
#include "proto/result.h"

namespace ddprun::launcher {

// `ddprun [options] doctor [--json] [SCRIPT]`.
struct DoctorCall {
  bool json = false;
  std::string script{};  // empty: none was named
};

// Nothing: `options` ask for a job. A file that is named doctor is a script like any other. Error:
// the words behind `doctor` are not those above; exit code 2.
std::optional<Result<DoctorCall>> doctor_call(const Options& options, const CommandFacts& facts);

// What is asked about this node. `script`: as in DoctorCall.
NodeQuestion node_question(const Options& options, const std::string& script, const EnvLookup& env,
                           const CommandFacts& facts);

// What was seen, and what that means.
struct Examination {
  NodeFacts facts{};
  Findings findings{};
};
Examination examine_node(const NodeQuestion& question);

// Whether nodes can meet by what was found of this one. Else they would wait in vain.
bool can_meet(const Findings& findings);

// What the other nodes compare of this one.
Peer peer_of(const NodeFacts& facts);

}  // namespace ddprun::launcher
