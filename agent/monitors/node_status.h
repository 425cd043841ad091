// This node's knowledge of itself and of the job, as pages/status_report.h has it. A process that
// hosts the rendezvous knows all nodes. Every other process knows its own seat and no other. It
// only looks. Loop's thread; no state.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/core/incident.h"
#include "agent/core/lifecycle.h"
#include "agent/monitors/step_history.h"
#include "agent/network/node_services.h"
#include "agent/processes/children.h"
#include "agent/report/incident_log.h"
#include "rendezvous/control/pages/status_report.h"
#include "rendezvous/core/timeline.h"

namespace ddprun::agent {

// The sources of a report.
struct NodeInfo {
  const AgentConfig& config;
  const std::string& hostname;
  const Lifecycle& lifecycle;
  const IncidentLog& incidents;
  const rendezvous::Timeline& timeline;
  const NodeServices* services;  // null: they are not there yet
  std::vector<WorkerProgress> progress{};
  const Children& children;
  const StepHistory& steps;
  http::WallTime started{};
  bool is_public = false;  // the report can be read from other hosts
};

// `healthy` is: this node has a session with the rendezvous, and the job is not over. An answer
// shows that the loop runs.
http::StatusReport node_status(const NodeInfo& facts);

}  // namespace ddprun::agent
