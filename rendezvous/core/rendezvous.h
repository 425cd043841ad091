// The plain types of the rendezvous, and the interface through which a node speaks to it: Session.
// The agent uses a Session. It does not know whether the rendezvous is in its own process (host.h)
// or across the network (client.h). No I/O here.
//
// The types may be used on any thread, a Session only on the loop's thread. The agent owns its
// Session.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "rendezvous/core/standstill.h"

namespace ddprun::rendezvous {

// The most nodes of one round.
inline constexpr int kMaxNodes = 16384;
// The most nodes that the rendezvous knows at one time: those of a round, spares and refused ones.
inline constexpr int kMaxMembers = kMaxNodes + 1024;

// How a job's rounds are formed, as its nodes were told. Flags, the agent's plan, a node's join and
// the policy of a host have these by value. The first two
// defaults are torchrun's, and the resize is ddprun's own.
struct RoundSettings {
  // How long nodes wait for a round. The time starts with the first node that waits while no worker
  // of the last round lives. At its end the round starts if min_nodes are there; otherwise the job
  // ends.
  std::chrono::milliseconds join_timeout{600'000};
  // How long the first round, once it has min_nodes, waits for more nodes. The time starts when
  // min_nodes is reached. A late joiner does not start it again. Otherwise nodes that come one by
  // one could delay the round up to join_timeout.
  std::chrono::milliseconds last_call{30'000};
  // A running round with room is broken for newcomers. That is this long after the first of them
  // came, so that several come at once. It is not sooner than `resize_interval` after the last such
  // break.
  std::chrono::milliseconds resize_wait{1'000};
  std::chrono::milliseconds resize_interval{30'000};
  // The number of nodes of a round is a multiple of this; so must be min_nodes and max_nodes.
  int node_unit = 1;

  bool operator==(const RoundSettings&) const = default;
};

// A threshold is no higher: no node has more strikes.
inline constexpr int kMostThreshold = 16;

// When a node sits out (strikes.h).
struct StrikeRules {
  int most = 0;                            // so many strikes, and it does; 0: no node ever does
  std::chrono::milliseconds half_life{0};  // a strike counts half after each of these; 0: for ever

  bool operator==(const StrikeRules&) const = default;
};

// The facts that a node brings to a round.
struct NodeSpec {
  std::string node_id;       // unique per agent process; the same in each of its joins
  std::string hostname;      // for reports only, never resolved
  int local_world_size = 1;  // workers that this node will start
  std::string role = "default";
  int node_rank = -1;  // the node rank it wants (--node-rank); -1: any
  // With c10d a rank is a preference: it is met if it is free and in the round. The static
  // backend's must be met, and a node that cannot have it is refused.
  bool rank_is_preferred = false;
  // Numeric address of its store. If it is empty, it is the address from which the rendezvous sees
  // this node.
  std::string store_address;
  std::uint16_t store_port = 0;  // it serves the round's store here if it gets node rank 0
  // The worker with rank 0 serves the round's store itself, at this port. 0: the node does.
  std::uint16_t worker_store_port = 0;
  int max_restarts = 0;
  // rendezvous/core/restart_budget.h says what these three mean. 0: none.
  std::chrono::milliseconds restart_window{0};
  std::chrono::milliseconds backoff{0};
  std::chrono::milliseconds backoff_max{0};
  int most_without_progress = 0;  // attempts in a row (progress.h); 0: as many as there are
  // --nnodes of this node: the host refuses a node that was given another one. 0: not told.
  int min_nodes = 0;
  int max_nodes = 0;
  // It looks at its workers when it is told to (Look). An older node is not told, and the others
  // get a verdict without its ranks.
  bool answers_looks = false;
  // It compares its workers' replicas. An older node is not asked.
  bool compares_replicas = false;
  // It hears of stragglers. An older node is not told.
  bool hears_stragglers = false;
  // It takes StepOrder. A round with an older node agrees on no step.
  bool takes_step_orders = false;
  StrikeRules strike_rules{};
  // The strikes that it knows of (strikes.h), of a job before or of the last round.
  std::string strikes{};
  // The settings of the job, used if this node is its first one. A host that serves one job has its
  // own. A time is 0 if an older node does not send it.
  RoundSettings settings;

  bool operator==(const NodeSpec&) const = default;
};

// A node's own place in a round. The workers of one node have consecutive ranks.
struct Seat {
  int node_rank = 0;
  int first_rank = 0;       // global rank of its local rank 0
  int role_first_rank = 0;  // role rank of its local rank 0
  int role_world_size = 1;  // workers of this role over all nodes

  bool operator==(const Seat&) const = default;
};

// The facts that all nodes of a round agree on. Global ranks are 0 … world_size-1, node ranks 0
// … node_count-1. The ranks follow each other in the order of the node ranks.
struct Round {
  std::int64_t number = 0;  // only ever grows; 0: no round yet
  int restart_count = 0;    // restarts of the job so far; one count for all nodes
  int world_size = 0;
  int node_count = 0;
  std::string master_addr;  // numeric; the store of node rank 0
  std::uint16_t master_port = 0;
  std::string master_hostname{};  // for people; empty: an older host does not say it
  std::string strikes{};          // of all nodes, as the round began (strikes.h)

  bool operator==(const Round&) const = default;
};

// How far a node is that comes back.
enum class NodeState {
  kJoining,    // it asked for a seat in the next round, and has no workers
  kRunning,    // its workers run
  kSucceeded,  // all of them exited 0
  kStopping,   // it was told that the round broke, and ends its workers
};

// Why a failure is of the node and not of the program. They travel as numbers: new ones come last.
enum class NodeFault {
  kNone,        // the program's, or nobody knows
  kLost,        // nobody reaches the node
  kInKernel,    // no signal ended a worker
  kDevice,      // the driver says that a device does not work
  kMemory,      // the kernel killed a worker for want of memory
  kStandstill,  // others waited for a worker that stood still in the kernel
  kExitCode,    // the worker says so (--exit-excludes-node)
};

// Why a round broke or the job ended. The node that failed first reports it. The host sends it to
// all nodes, so that each of them can name the cause.
struct Failure {
  std::string hostname;
  int rank = -1;  // global rank of the failed worker; -1: the node itself failed
  int local_rank = -1;
  int exit_code = 0;    // exit status; minus the signal number if killed (-9 = SIGKILL)
  std::string message;  // one line for people
  // From the first sign of it until its node, or the host, acted on it. Nothing if nobody knows.
  std::optional<std::chrono::microseconds> noticed_after{};
  // The end of the worker's stderr: the line that names Python's exception, else the last one in
  // quotes. Why it could not be started, if it never ran.
  std::string words{};
  // The last step that the attempt ended, as the node knows it. Nothing: it knows no steps.
  std::optional<std::int64_t> step{};
  // The step is one of the whole run. Else it is counted from the worker's first line on, and the
  // program may have begun at a checkpoint.
  bool is_step_of_run = false;
  bool is_hang = false;   // the worker was ended because it stood still (--on-hang)
  bool ends_job = false;  // no restart follows, whatever is left (--exit-ends-job)
  NodeFault fault = NodeFault::kNone;

  bool operator==(const Failure&) const = default;
};

// The report of a node that was in the job already, over a new connection or to a new leader.
struct ResumeRequest {
  NodeSpec spec;  // as in its last join
  // How many times it has said this. A connection over which it said it earlier, or joined, is cut
  // when its words come late. 0: an older agent does not count.
  std::int64_t connection = 0;
  std::int64_t round = 0;  // the last that was published to it; 0: none was
  int seat = -1;           // its node rank in that round
  int node_count = 0;      // of that round
  int restarts = 0;        // of the job, as of that round
  NodeState state = NodeState::kJoining;
  // The cause that it was told, with kStopping.
  Failure cause{};
  bool is_resize = false;

  bool operator==(const ResumeRequest&) const = default;
};

// ---- messages of the host to a node ----

// The round starts and this node is in it: start workers. A node is told its own seat and nobody
// else's. So the bytes of a round grow with the number of nodes and not with its square.
struct RoundPublished {
  Round round;
  Seat seat;
};
// `round` is over before its workers are: stop this node's workers, then call join() again. Either
// a worker or a node failed, and a restart is left. Or nodes came or left (`is_resize`), and no
// restart is spent.
struct RoundBroken {
  std::int64_t round = 0;
  Failure cause;
  bool is_resize = false;
  // As in SessionLost. Only where the node looks for its host or the next leader; no host sends it.
  bool is_fenced = false;
};
// An attempt that a failure ended.
struct FailedAttempt {
  std::int64_t round = 0;
  Failure cause;

  bool operator==(const FailedAttempt&) const = default;
};
// Attempts in a row that got no further than the one before them (progress.h).
struct NoProgress {
  int attempts = 0;
  std::string sentence{};             // one clause for people: what they have in common
  std::vector<FailedAttempt> last{};  // kMostShownAttempts at most, oldest first

  bool operator==(const NoProgress&) const = default;
};
inline constexpr std::size_t kMostShownAttempts = 8;

// The job is over for every node. If it succeeded, all nodes of the round reported success.
// Otherwise stop this node's workers; `cause` says why.
struct JobEnded {
  bool succeeded = false;
  Failure cause;                            // when not succeeded
  bool is_stopped = false;                  // an operator ended the job; no worker is to blame
  std::optional<NoProgress> no_progress{};  // restarts are left, and nothing comes of them
  std::string strikes{};                    // of all nodes (strikes.h)
};
// An operator takes this node out of the job: stop its workers and leave. The others go on without
// it. The node leaves as it does by itself (leave(), gone()), and that it left is no failure.
struct Drain {
  // From now to SIGKILL for its workers; 0: as long as the node gives them anyway.
  std::chrono::milliseconds deadline{0};
};
// The session is over; no message follows. Either the host is unreachable, or it refused this node,
// or too few nodes joined in time.
struct SessionLost {
  Error error;
  // The lease ended (keep_alive.h): the others may start a round soon. No worker may live on.
  bool is_fenced = false;
  bool was_reached = true;  // false: nobody ever answered at the endpoint
  // The host's kernel closed the connection, as at the end of a process. A firewall resets it.
  bool was_closed = false;
  // If it is not fenced, the workers may live until then, also those that end already. Zero: nobody
  // said.
  std::chrono::steady_clock::time_point lease_ends{};
  // The lease ended while this process was suspended, and nobody has answered since: perhaps nobody
  // missed it.
  bool was_suspended = false;
  // Until then the node may come back with its workers (Session::resume()).
  bool may_return = false;
  // The host's process may be replaced by one that knows of no round: it takes the nodes back, too.
  // So its death is no end.
  bool host_returns = false;
};
// A node suspects that the workers of `round` stand still. Look at this node's own, and say what
// was seen (Session::give_evidence()).
struct Look {
  std::int64_t round = 0;
  std::int64_t inquiry = 0;  // counted by this host; each look has another one
};
// The inquiry is over, and this is the verdict on the round. All of its nodes are told the same.
struct StandstillVerdict {
  std::int64_t round = 0;
  std::int64_t inquiry = 0;
  Verdict verdict;
};
// Ranks of `set` differ in the check of this step. Answer with the hashes of its tensors
// [first, first + count), as cells (replica_cells()).
struct ReplicaQuestion {
  std::int64_t round = 0;
  std::int64_t number = 0;  // counted by this host
  std::uint64_t set = 0;
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;  // 0: all
};
// Ranks differ in what should be the same. All nodes of the round are told.
struct ReplicaVerdict {
  std::int64_t round = 0;
  std::int64_t step = 0;
  std::vector<int> ranks{};  // those that differ from the majority; without one, all
  std::string sentence{};    // one line for people
};
// Ranks are slower than the others. All nodes of the round are told.
struct StragglerVerdict {
  std::int64_t round = 0;
  std::vector<int> ranks{};
  std::string sentence{};  // one line for people
};
// The step at whose end all ranks of the round save (preemption.h).
enum class StepStage {
  kAsk,   // say how far the ranks are (Session::answer_step())
  kHold,  // a rank that reaches the step waits there; then say how far they are
  kTake,  // all hold it: it is the step
};
struct StepOrder {
  std::int64_t round = 0;
  std::int64_t number = 0;  // counted by this host; each order has another one
  StepStage stage = StepStage::kAsk;
  std::int64_t step = 0;  // counted from 1; with kTake, 0: no step is agreed, so at once
  int signo = 0;          // the ranks get it at the end of the step
  // From now to SIGKILL for workers that have not ended.
  std::chrono::milliseconds deadline{0};
  bool is_end = true;      // the job ends; false: the workers go on
  std::string hostname{};  // of the node that was given notice; for people

  bool operator==(const StepOrder&) const = default;
};
using HostMessage =
    std::variant<RoundPublished, RoundBroken, JobEnded, SessionLost, Drain, Look, StandstillVerdict,
                 ReplicaQuestion, ReplicaVerdict, StragglerVerdict, StepOrder>;

// ---- what a node tells of a notice (preemption.h) ----

// This node is about to be taken away, or somebody wants the ranks to save.
struct Notice {
  std::int64_t round = 0;
  int signo = 0;                          // the workers get it
  std::chrono::milliseconds deadline{0};  // from now to SIGKILL
  bool is_end = true;                     // as in StepOrder

  bool operator==(const Notice&) const = default;
};
// The answer to kAsk and kHold.
// A node waits so long for the order after its notice, and then goes alone. Short deadlines leave
// less.
inline constexpr std::chrono::milliseconds kOrderLimit{8000};
constexpr std::chrono::milliseconds order_limit(std::chrono::milliseconds deadline) {
  return std::min(kOrderLimit, deadline / 4);
}
struct StepAnswer {
  std::int64_t round = 0;
  std::int64_t number = 0;  // of the order
  std::int64_t steps = 0;   // that the node's farthest rank has done; 0: none counts

  bool operator==(const StepAnswer&) const = default;
};

// ---- what a node tells of replicas (replicas.h) ----

// A question is answered with so many hashes of a rank at most. Names go with so many tensors.
inline constexpr std::size_t kMostReplicaCells = 64;
inline constexpr std::size_t kMostReplicaNames = 4;
inline constexpr std::size_t kMostReplicaNameBytes = 200;
// A report has so much at most: it must fit a message.
inline constexpr std::size_t kMostReplicaSums = 64;
inline constexpr std::size_t kMostReplicaRanks = 1024;  // of all sums together, and of a tensor
inline constexpr std::size_t kMostReplicaTensors = 1;

// Ranks of one node whose check has the same hash.
struct ReplicaSum {
  std::uint64_t set = 0;  // tells the optimizer and its group of ranks
  int members = 0;        // ranks of the group
  std::int64_t step = 0;  // of the optimizer
  std::uint64_t sum = 0;
  std::vector<int> ranks{};  // global

  bool operator==(const ReplicaSum&) const = default;
};
// Ranks of one node whose answer to a question is the same.
struct ReplicaTensors {
  std::vector<int> ranks{};  // global
  std::int64_t tensors = 0;  // of the set
  std::vector<std::uint64_t> cells{};
  std::vector<std::string> names{};  // of the tensors asked for, if they are kMostReplicaNames

  bool operator==(const ReplicaTensors&) const = default;
};
struct ReplicaReport {
  std::int64_t round = 0;
  std::int64_t question = 0;  // of `tensors`
  std::vector<ReplicaSum> sums{};
  std::vector<ReplicaTensors> tensors{};

  bool operator==(const ReplicaReport&) const = default;
};

// ---- what a node tells of its ranks' steps (stragglers.h) ----

// A sample has so many calls of a step at most, and a report so many ranks. It must fit a message.
inline constexpr std::size_t kMostSampledCalls = 16;
inline constexpr std::size_t kMostSampledRanks = 64;

// The steps of one rank in some seconds. Times are means in microseconds, by its own clock.
// Percentiles of the steps of one rank, in microseconds. Own times end at the step's last call.
struct StepSpread {
  std::int64_t step_p50_us = 0;
  std::int64_t step_p99_us = 0;
  std::int64_t own_p50_us = 0;
  std::int64_t own_p97_us = 0;
  std::int64_t own_p99_us = 0;

  bool operator==(const StepSpread&) const = default;
};
struct StepSample {
  int rank = 0;             // global
  std::uint64_t group = 0;  // tells the process group in which it calls collectives; 0: none
  int members = 0;          // ranks of the group
  int steps = 0;            // that were timed: those with `calls` collectives
  int calls = 0;            // collectives in a step
  std::int64_t step_us = 0;
  // From the end of the step before to the call, ascending. They are spread evenly over the calls,
  // and the last is the last one. All ranks of a group with as many calls name the same ones.
  std::vector<std::int64_t> called_us{};
  int cpu_wait = 0;  // thousandths of the time in which its main thread waited for a CPU
  StepSpread spread{};

  bool operator==(const StepSample&) const = default;
};
// The load of a node's CPUs in a window that is not the job's, in thousandths. And how fast they
// run, in thousandths of the most. 0: not known.
struct HostSample {
  int stolen = 0;     // by the hypervisor
  int throttled = 0;  // of the window: the cgroup had used up its quota
  int others = 0;     // programs that are none of the workers'
  int frequency = 0;

  bool operator==(const HostSample&) const = default;
};
struct StepReport {
  std::int64_t round = 0;
  HostSample host{};
  std::vector<StepSample> samples{};

  bool operator==(const StepReport&) const = default;
};

// The event that a waiting node waits for. It travels as a number: new ones come last.
enum class Await {
  kNodes,         // too few are here; the job gives up at the end of the time
  kLastCall,      // enough are here; more may come until the end of the time
  kOldWorkers,    // workers of the last round still run; no time
  kRestartPause,  // the round starts at the end of the time
  kSeat,          // a round runs, and a node that waits is a spare; no time
  kResize,        // a round runs that has room, and breaks at the end of the time
};
struct WaitStatus {
  Await awaits = Await::kNodes;
  // Nodes that wait and hold a seat; with kSeat and kResize, the nodes of the round that runs.
  int have = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::chrono::milliseconds ends_in{0};
  std::string missing;  // wanted node ranks that are not here, "1, 3"; empty: not known

  bool operator==(const WaitStatus&) const = default;
};

// A node that no host has let in yet.
struct UnreachedHost {
  std::string why;  // the last try's failure; empty: none has failed
  // When the node gives up; Time::max(): that is not known.
  std::chrono::steady_clock::time_point ends = std::chrono::steady_clock::time_point::max();
};

// One node's session with the rendezvous. Call it on the loop's thread. The host's messages come on
// that thread too. They are posted: none comes while a function of this interface runs. So the
// caller may change its own state after such a function returned. The one exception is a session of
// Host::open_direct_session().
class Session {
 public:
  using MessageHandler = std::function<void(HostMessage)>;

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;

  // Asks for a seat in the next round. Call it only when all workers of the node's previous round
  // are gone. The answer is RoundPublished, JobEnded or SessionLost. It comes when the round starts
  // or the host gives up. A spare may wait for it as long as the job lives.
  virtual void join(const NodeSpec& node) = 0;
  // Instead of join(), as the first word of a session of a node that had one before. If the host
  // believes it, nothing follows: the round goes on. Otherwise, and if the round broke meanwhile,
  // the answer is RoundBroken; if the job ended meanwhile, JobEnded. With kJoining it is as join().
  // It may be said twice.
  virtual void resume(const ResumeRequest& node) = 0;
  // A worker of `round` failed. The answer is RoundBroken if a restart is left, otherwise JobEnded.
  // A restart is one for all nodes. May be called while this node still stops its other workers.
  // A report about an older round changes nothing and gets no answer.
  virtual void report_failure(std::int64_t round, const Failure& failure) = 0;
  // All workers of this node exited 0. The answer is JobEnded once every node of the round reported
  // success. If another node fails first, it is RoundBroken or JobEnded.
  virtual void report_success(std::int64_t round) = 0;
  // This node goes for good (it got a signal, or has an error of its own). If enough nodes remain,
  // the others get RoundBroken and go on; otherwise JobEnded. A spare goes alone, and so does a
  // node that was in no round yet or has reported success. No answer.
  virtual void leave(const Failure& reason) = 0;
  // No worker of this node is left, after leave() or SessionLost: the others' next round may wait
  // for that. Without it the destructor says the same. After leave(), over the network, the
  // destructor waits until the host has read it, at most RemoteOptions::leave_limit.
  virtual void gone() = 0;
  // As far as this node was told; over the network that is some moments old. Nothing if the job is
  // over, or nothing is known yet.
  virtual std::optional<WaitStatus> wait_status() const = 0;
  // Returns why this node reaches no host; nothing of it is set once a host has let it in.
  virtual UnreachedHost unreached() const { return {}; }
  // This node's workers of `round` make no step. The answer is Look, to all nodes of the round.
  // None comes if an inquiry goes on already, or one began a moment ago. The suspicion is lost if
  // the node has no host now, or an older one. Say it again while it is so.
  virtual void suspect(std::int64_t /*round*/) {}
  // The answer to Look: one of each rank of this node, at once or in parts. When all nodes of the
  // round have said it, they get StandstillVerdict. That comes after kInquiryLimit at the latest
  // (inquiry.h), and not if the round breaks meanwhile. It may be lost as suspect() may.
  virtual void give_evidence(std::int64_t /*round*/, std::int64_t /*inquiry*/,
                             const std::vector<RankEvidence>& /*evidence*/) {}
  // The hashes of this node's replicas, or its answer to ReplicaQuestion. If ranks differ, the
  // answer is ReplicaQuestion to the nodes of the round, and in the end ReplicaVerdict. It may be
  // lost as suspect() may.
  virtual void report_replicas(const ReplicaReport& /*report*/) {}
  // The steps of this node's ranks since the last report. The answer is StragglerVerdict if ranks
  // have become slower than the others. It may be lost as suspect() may.
  virtual void report_steps(const StepReport& /*report*/) {}
  // This node is about to be taken away. The answer is StepOrder, to all nodes of the round. It may
  // be lost as suspect() may.
  virtual void give_notice(const Notice& /*notice*/) {}
  // The answer to StepOrder. It may be lost as well.
  virtual void answer_step(const StepAnswer& /*answer*/) {}
  // Another is the host now: this session ends without leave() or gone(), and waits for no receipt.
  virtual void abandon() {}
  // Over the network: until when the workers may live on if this session ended now. The past: they
  // may not, or that is not the network's to say.
  virtual std::chrono::steady_clock::time_point lease_ends() const { return {}; }
};

}  // namespace ddprun::rendezvous
