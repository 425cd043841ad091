// The words of the rendezvous and a node's session to it. Plain types and one interface; no I/O here.
// The agent programs against Session and does not know whether the rendezvous is in its own
// process or across the network.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "proto/result.h"

namespace ddprun::rendezvous {

// Nodes of one job, spares and refused ones included. A round names every node to every node, so
// its messages grow with the square: 1,024 nodes are some 200 MB to send.
inline constexpr int kMaxNodes = 1024;

// Beats go both ways at this pace over an idle session, so that a cut network or a stopped machine is
// noticed.
inline constexpr std::chrono::milliseconds kBeatEvery{1000};
// So many beats in a row without a word and the peer is lost: 3 to 4 s. Counted in beats of our own
// timer, not on the clock, so that a stall of our own loop (a suspended machine) does not make
// every peer look silent.
inline constexpr int kSilenceTicks = 3;
// What a node brings to a round.
struct NodeSpec {
  std::string node_id;       // unique per agent process, the same in each of its joins
  std::string hostname;      // for reports only, never resolved
  int local_world_size = 1;  // workers this node will start
  std::string role = "default";
  int node_rank = -1;  // the rank it insists on (--node-rank of the static backend); -1: any
  // Numeric address of its store; empty: the address the rendezvous sees it at.
  std::string store_address;
  std::uint16_t store_port = 0;  // where it will serve this round's store should it get node rank 0
  int max_restarts = 0;
  // rendezvous/restart_budget.h; 0: none.
  std::chrono::milliseconds restart_window{0};
  std::chrono::milliseconds backoff{0};
  std::chrono::milliseconds backoff_max{0};

  bool operator==(const NodeSpec&) const = default;
};

// A node's place in a round.
struct Seat {
  std::string node_id;
  std::string hostname;
  std::string role;
  int local_world_size = 1;
  int first_rank = 0;       // global rank of its local rank 0
  int role_first_rank = 0;  // role rank of its local rank 0
  int role_world_size = 1;  // workers of this role over all nodes

  bool operator==(const Seat&) const = default;
};

// One agreed membership. Equal on every node of the round. seats[i] has node rank i; global ranks
// are 0 … world_size-1, contiguous per node in seat order.
struct Round {
  std::int64_t number = 0;  // only ever grows
  int restart_count = 0;    // restarts of the whole job so far, one count for all nodes
  int world_size = 0;
  std::vector<Seat> seats;
  std::string master_addr;  // numeric; the store of node rank 0
  std::uint16_t master_port = 0;

  bool operator==(const Round&) const = default;
};

// The first failure of a round as its node tells it; carried to all nodes so that each can name the
// job's cause.
struct Failure {
  std::string hostname;
  int rank = -1;  // global rank of the failed worker; -1: the node itself failed
  int local_rank = -1;
  int exit_code = 0;    // as a shell would see it negative for signals: -9 is SIGKILL
  std::string message;  // one line for people

  bool operator==(const Failure&) const = default;
};

// ---- news from the rendezvous to a node ----

// The round closed with this node in it: start workers. `seat` indexes round.seats (= this node's
// rank).
struct RoundPublished {
  Round round;
  int seat = 0;
};
// A worker or node of `round` failed and a restart is left: stop this node's workers, then join()
// again.
struct RoundBroken {
  std::int64_t round = 0;
  Failure cause;
};
// The job is over for every node. On success all nodes reported success; else stop the workers;
// `why` says the reason.
struct JobEnded {
  bool succeeded = false;
  Failure cause;  // when not succeeded
};
// The session is gone for good: host unreachable, join timed out, refused. Nothing follows.
struct SessionLost {
  Error error;
};
using HostMessage = std::variant<RoundPublished, RoundBroken, JobEnded, SessionLost>;

// One node's session to the rendezvous. Used on the loop's thread; news arrive there too, never from
// inside a call of this interface (they are posted), so a caller may change its state after any of
// these calls.
class Session {
 public:
  using MessageHandler = std::function<void(HostMessage)>;

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;

  // Asks to be in the next round. All workers of the node's previous round must be gone. Answered
  // by RoundPublished, JobEnded or SessionLost.
  virtual void join(const NodeSpec& node) = 0;
  // A worker of `round` failed. Answered by RoundBroken (a restart was granted and is the same for
  // all nodes) or by JobEnded. May be called while the other workers are still being stopped.
  virtual void report_failure(std::int64_t round, const Failure& failure) = 0;
  // All workers of this node exited 0. Answered by JobEnded once every node of the round said so,
  // or by RoundBroken.
  virtual void report_success(std::int64_t round) = 0;
  // This node goes for good and takes the job with it (a signal, a local error). Not answered; the
  // other nodes get JobEnded. Returns once the message is on its way.
  virtual void leave(const Failure& reason) = 0;
};

}  // namespace ddprun::rendezvous
