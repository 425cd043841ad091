// One node of a simulated job. It has the real Lifecycle, the real lease and the real Failover. Its
// workers exit, hang, fail or ignore the request to end. Its clock need not run as fast as the
// host's. A connection that breaks is followed by another, to the host of then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/lifecycle.h"
#include "rendezvous/core/keep_alive.h"
#include "rendezvous/failover/failover.h"
#include "tests/sim/one_way.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

// A worker process. It lives until something ends it.
struct SimWorker {
  int local_rank = 0;
  std::int64_t round = 0;
  bool ignores_request = false;  // the request to end; SIGKILL ends it
  bool hangs = false;            // it was asked to end and does nothing any more
  bool alive = true;
};

// The decisions of the simulation about a node.
struct NodePlan {
  rendezvous::NodeSpec spec;
  double clock_rate = 1;       // against the virtual time
  milliseconds work_least{0};  // workers succeed no sooner than this after the simulation began
  int most_delay_ms = 50;      // of the network, one way
};

class SimNode {
 public:
  // `workers_start` is called before the workers of a round start, with its number. `faulty` says
  // whether things may still fail.
  struct World {
    VirtualTime& time;
    // Finds the leader, as far as it can be found out; it answers once. Null if nobody leads.
    std::function<void(std::function<void(SimHost*)>)> find_host;
    bool is_elected = false;  // another host may follow this one
    std::function<SessionId()> new_session;
    std::function<void(std::int64_t round)> workers_start;
    std::function<bool()> faulty;
    std::function<std::int64_t()> last_round{};  // of which workers were started, by anybody
  };

  SimNode(const World& world, NodePlan plan);

  void start();
  // The machine is off: nothing of it happens any more. `with_word`: the network still tells the
  // host, as when only the processes die.
  void crash(bool with_word);
  // The user or the scheduler tells the agent to end.
  void leave();
  // Cuts the network for a while, either direction or both.
  void cut(bool up, bool down, milliseconds length);
  // Something between the two breaks the connection, and both live. The host may not notice.
  void reset(bool host_notices);
  // The job is over, and no host is there to say so.
  void job_over(bool succeeded);
  // While the network is in doubt, heartbeats and leases are simulated; before, they are known to
  // work.
  void watch_network();
  // The agent does not run for a while; its workers do.
  void stall(milliseconds length);
  // The machine does not run for a while, and so do neither agent nor workers.
  void suspend(milliseconds length);

  // The number of the oldest round of which a worker runs; 0: none does. After a suspension it may
  // run for as long as its agent asks.
  std::int64_t oldest_live_round() const;
  // Nothing of this node runs any more.
  bool is_over() const { return over_; }
  bool is_leaving() const { return leaving_; }
  agent::Phase phase() const { return cycle_.phase(); }
  std::int64_t round() const { return cycle_.round().number; }
  int live_workers() const;
  const std::string& name() const { return plan_.spec.node_id; }

 private:
  class Voice;
  struct Connection {
    SimHost* host;
    SessionId session;
    OneWay up;
    OneWay down;
    bool is_admitted = false;
  };
  using SharedConnection = std::shared_ptr<Connection>;

  Time local_now() const { return clock_.local(world_.time.now()); }
  milliseconds stamp() const;
  bool is_admitted() const { return connection_ && connection_->is_admitted; }

  // Performs what the failover decides. `words`: for PassOn.
  using Words = std::function<void(rendezvous::Session&)>;
  void act(const rendezvous::FailoverActions& actions, const Words& words = {});
  void act(const rendezvous::OpenSession& action);
  void act(const rendezvous::CloseSession& action);
  void act(const rendezvous::FenceSession& action);
  void act(const rendezvous::Replay& action);
  void act(const rendezvous::Deliver& action);
  void act(const rendezvous::LookForLeader& action);
  void act(const rendezvous::EndJob& action);
  void look_for_leader();
  void connect(SimHost& host);
  void drop_connection();
  void on_message(const rendezvous::HostMessage& message);
  void lose(bool is_fenced);
  void renewed(milliseconds heartbeat, const rendezvous::Lease& lease);
  void say(std::function<void(SimHost&, SessionId)> words);
  void hear(const SharedConnection& over, std::function<void()> act);
  void perform(const agent::Actions& actions);
  void start_workers();
  void start_worker(int local_rank);
  void ask_workers(int signo);
  void kill_workers();
  void exit_worker(std::size_t index, int code);
  void finish();
  void look_again();
  void look_again_for_host();
  void schedule_heartbeat();
  void heartbeat();
  void watch_lease(int turn);
  // Runs `act` when the agent runs again.
  void when_awake(std::function<void()> act);

  World world_;
  const NodePlan plan_;
  const Time began_;
  const Clock clock_;
  agent::Lifecycle cycle_;
  rendezvous::Failover failover_;
  SharedConnection connection_;  // null: none
  int connections_ = 0;          // so many there were
  int cut_up_ = 0;               // cuts of now
  int cut_down_ = 0;
  int search_ = 0;             // of the host; answers to an earlier one do not count
  SimHost* leader_ = nullptr;  // the last one that was found
  std::vector<std::function<void(SimHost&, SessionId)>> unsent_;  // until it is let in
  rendezvous::HeldLease lease_;
  std::vector<rendezvous::HostMessage> held_;  // until the next lease
  int heartbeat_turn_ = 0;  // of the timer that counts; those that were set before do nothing
  int lease_turn_ = 0;
  std::vector<SimWorker> workers_;  // of all rounds
  bool over_ = false;
  bool leaving_ = false;
  bool watched_ = false;
  Time awake_at_{};
  Time suspended_until_{};
  Time timer_at_{};
  Time failover_at_{};
};

}  // namespace ddprun::sim
