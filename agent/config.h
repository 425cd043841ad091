// What the agent is told to do, decided by the launcher from flags and environment. Plain values,
// no I/O; made once before the agent starts and never changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "proto/result.h"
#include "rendezvous/membership.h"

namespace ddprun::agent {

// Nodes that a job may have at most.
inline constexpr int kMaxNodes = rendezvous::kMaxNodes;

// Where one worker's output goes. Redirected: to its file only. Tee'd: to its file and, line by
// line with a prefix, to the console. Neither: it inherits the console.
struct StreamPlan {
  bool redirect_stdout = false;
  bool redirect_stderr = false;
  bool tee_stdout = false;
  bool tee_stderr = false;
};

// The program of one worker: an executable found (file) and its arguments, argv[0] first.
struct Command {
  std::string file;
  std::vector<std::string> argv;
};

// How this node meets the others.
struct RendezvousPlan {
  enum class Kind {
    kAlone,   // one node: in this process, nothing listens for it
    kStatic,  // fixed node ranks; node rank 0 hosts rendezvous and store at host:port
    kC10d,    // the agent on the endpoint's host hosts the rendezvous; node ranks are assigned
  };
  Kind kind = Kind::kAlone;
  int node_count = 1;
  int node_rank = 0;               // kStatic only
  std::string host = "127.0.0.1";  // endpoint, or master address; kAlone: where the store listens
  std::uint16_t port = 0;          // 0: any free port (kAlone)
  std::optional<bool> is_host;     // kC10d: overrides the guess whether this node hosts
  std::string run_id = "none";
  std::string token;       // every control connection carries it; never printed
  std::string local_addr;  // --local-addr; empty: found from the route to the endpoint
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds connect_timeout{60'000};
};

struct AgentConfig {
  RendezvousPlan rendezvous;
  int worker_count = 1;
  std::string role = "default";
  int max_restarts = 0;
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
  std::string log_dir;              // empty: a temporary folder; "/dev/null": no files at all
  std::vector<StreamPlan> streams;  // one per local rank
  std::function<Command(int local_rank)> command;
  std::vector<std::string> base_env;  // NAME=value; what workers inherit before their own variables
  std::string job_cookie;  // unique on this host; in every worker's environment as DDPRUN_JOB
  std::string entry;       // the script or program as the user gave it, for the report
};

}  // namespace ddprun::agent
