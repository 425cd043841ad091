// A part of judge.h: GPUs, and the variables that choose how ranks reach each other. Pure.
#pragma once

#include "launcher/doctor/findings.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// NVIDIA's GPUs, then the accelerators of other kinds. Without any, one line says so.
void judge_gpus(const NodeQuestion& question, const NodeFacts& facts, Findings& found);

// NCCL_* and GLOO_* that name nothing that is there, or switch off what is.
void judge_variables(const NodeQuestion& question, const NodeFacts& facts, Findings& found);

}  // namespace ddprun::launcher
