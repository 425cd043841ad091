// The agent: runs one node's part of a job. It tells the lifecycle (agent/core/lifecycle.h) what
// happens: workers' deaths, messages of the rendezvous, signals, time. It performs the actions that
// the lifecycle answers with. It makes no decision about the job itself. Everything runs on one
// thread, on one Asio loop. Nothing polls: an idle agent does not wake up.
#pragma once

#include "agent/core/config.h"
#include "agent/guardian/guardian.h"

namespace ddprun::agent {

// Runs the job on this node until it ends. Blocks until then. Call it once, and only in the process
// that run_guarded() made for it. It changes signal dispositions and leaves the loop unfreed.
// Prints on stderr what the user must know. Returns the exit code of ddprun; the caller exits with
// it.
int run_agent(AgentConfig config, const AgentStart& start);

}  // namespace ddprun::agent
