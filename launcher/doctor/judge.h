// The meaning of a node's facts for the job that shall run there, and the commands to type. Pure:
// facts in, findings out. A failure is what the job cannot live with; a warning costs time, or
// bites later.
#pragma once

#include "launcher/doctor/findings.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

Findings judge_node(const NodeQuestion& question, const NodeFacts& facts);

}  // namespace ddprun::launcher
