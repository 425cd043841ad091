// A part of judge.h: GPUs that read each other's memory, and what a hang of them looks like. Pure.
#pragma once

#include "launcher/doctor/findings.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// Whether peer access would go a way on which it is known to hang. False of fewer than two GPUs.
bool is_peer_access_bent(const NodeQuestion& question, const NodeFacts& facts);

// Nothing of fewer than two GPUs.
void judge_peer_access(const NodeQuestion& question, const NodeFacts& facts, Findings& found);

// NCCL_P2P_LEVEL, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, of two GPUs or more.
void judge_peer_variables(const NodeQuestion& question, const NodeFacts& facts, Findings& found);

}  // namespace ddprun::launcher
