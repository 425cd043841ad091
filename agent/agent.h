// One node of a job: feeds the lifecycle with what happens (workers' deaths, messages of the
// rendezvous, signals, time) and performs what it decides. Everything runs on one loop's thread;
// nothing polls.
#pragma once

#include "agent/core/config.h"
#include "agent/guardian.h"

namespace ddprun::agent {

// Runs the job to its end on this node, in the process that run_guarded() made for it. Prints on
// stderr what the user must know. Returns the exit code of ddprun.
int run_agent(AgentConfig config, const AgentStart& start);

}  // namespace ddprun::agent
