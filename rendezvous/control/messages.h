// A question of an operator to a rendezvous, and the answer. Plain values; the codec and the two
// ends of the call are beside this file.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/control/job_snapshot.h"
#include "rendezvous/core/rank_stack.h"

namespace ddprun::rendezvous {

struct ShowJobs {       // one, or all
  std::string after{};  // all: those whose ids come after this one
};
struct DrainNode {
  std::string node;                       // node rank, hostname or id
  std::chrono::milliseconds deadline{0};  // 0: as the node has it
};
struct ForgiveNode {  // its strikes
  std::string node;   // as in DrainNode
};
struct ResizeJob {
  int min_nodes = 0;
  int max_nodes = 0;
};
struct StopJob {
  std::string by;
};
struct SaveCheckpoint {};    // all ranks save after one step, and go on
struct AwaitEnd {};          // the answer comes when the job has ended
struct ShowStacks {          // of the workers of one node, asked at its own socket (node_socket.h)
  std::vector<int> ranks{};  // global; empty: all of the node
};

struct ControlQuestion {
  std::string job;  // its rdzv id; empty: all, or the only one
  std::variant<ShowJobs, DrainNode, ResizeJob, StopJob, AwaitEnd, ShowStacks, ForgiveNode,
               SaveCheckpoint>
      verb;
};

// It travels as a number: new ones come last.
enum class ControlOutcome {
  kDone,          // for AwaitEnd: the job succeeded
  kJobFailed,     // AwaitEnd only
  kRefused,       // it was understood, and cannot be done
  kUnknown,       // there is no such job or node
  kWrongToken,    // the token is missing or wrong
  kUnreachable,   // nobody answered at the endpoint, or the connection broke
  kStillRunning,  // AwaitEnd only: the job still runs, ask again
  kHasNoToken,    // the job has none, so nobody may ask over the network
  kTls,           // somebody answered, and TLS or a certificate is what is wrong
  kNoTls,         // somebody answered without TLS, and we have certificates
};

// Asking again mends neither.
inline bool is_of_tls(ControlOutcome outcome) {
  return outcome == ControlOutcome::kTls || outcome == ControlOutcome::kNoTls;
}

struct ControlAnswer {
  ControlOutcome outcome = ControlOutcome::kDone;
  std::string text{};  // one line for people
  std::vector<JobSnapshot> jobs{};
  bool has_more = false;            // more jobs come after the last one
  std::vector<RankStack> stacks{};  // by rank
};

}  // namespace ddprun::rendezvous
