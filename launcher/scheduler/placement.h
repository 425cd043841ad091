// Finds from the flags and the scheduler's words which node of which job this is. Or says why the
// job must not start. A world smaller than the user asked for is the error that nobody notices. So
// each way to it is refused, with the command to type. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "launcher/scheduler/scheduler_facts.h"

namespace ddprun::launcher {

// The flags about nodes; a PET_ variable counts as its flag.
struct PlacementQuery {
  bool is_alone = false;     // --standalone, or an endpoint that is this machine on every machine
  bool by_flags = false;     // a flag says how or where nodes meet, or which one this is
  std::string flag_shown{};  // the first of these, as it was given
  int min_nodes = 0;         // --nnodes; 0: not given
  int max_nodes = 0;
  std::string nodes_shown{};  // `--nnodes=2`, as it was given
  std::string_view called{};  // the name that ddprun was called by
};

// The values that the flags would have had. Without a value the command line stands as it is.
struct Placement {
  int nodes = 1;
  int node_rank = 0;
  std::string host{};  // of the rendezvous; a name or an address
  std::uint16_t first_port = 0;
  std::string id{};
  std::string notice{};  // one line for people, said on one node
};

// Error: one clause of the form `what: why: what to type`, for exit code 2.
Result<std::optional<Placement>> place(const SchedulerFacts& scheduler_facts,
                                       const PlacementQuery& asked);

}  // namespace ddprun::launcher
