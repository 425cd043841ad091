// One node of a simulated job: the real Lifecycle, the real lease, and workers that exit, hang, fail
// or ignore the request to end. Its clock need not run as fast as the host's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "agent/core/lifecycle.h"
#include "rendezvous/keep_alive.h"
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

// What the simulation decides for a node.
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
    SimHost& host;
    std::function<void(std::int64_t round)> workers_start;
    std::function<bool()> faulty;
  };

  SimNode(const World& world, SessionId session, NodePlan plan);

  void start();
  // The machine is off: nothing of it happens any more. `with_word`: the network still tells the
  // host, as when only the processes die.
  void crash(bool with_word);
  // The user or the scheduler tells the agent to end.
  void leave();
  // Cuts the network for a while, either direction or both.
  void cut(bool up, bool down, milliseconds length);
  // The agent does not run for a while; its workers do.
  void stall(milliseconds length);

  // The number of the oldest round of which a worker lives; 0: none lives.
  std::int64_t oldest_live_round() const;
  // Nothing of this node runs any more.
  bool is_over() const { return over_; }
  bool is_leaving() const { return leaving_; }
  agent::Phase phase() const { return cycle_.phase(); }
  std::int64_t round() const { return cycle_.round().number; }
  int live_workers() const;
  SessionId session() const { return session_; }

 private:
  Time local(Time time) const;
  Time global(Time time) const;
  Time local_now() const { return local(world_.time.now()); }
  milliseconds stamp() const;

  void open_session();
  void renewed(milliseconds beat, const rendezvous::Lease& lease);
  void ask_for_seat();
  void say(std::function<void(SimHost&)> words);
  void hear(std::function<void()> act);
  void perform(const agent::Actions& actions);
  void start_workers();
  void start_worker(int local_rank);
  void ask_workers(int signo);
  void kill_workers();
  void exit_worker(std::size_t index, int code);
  void finish();
  void look_again();
  void schedule_beat();
  void beat();
  void watch_lease();
  // While the network is in doubt, beats and leases are simulated; before, they are known to work.
  void watch_network();
  // Runs `act` when the agent runs again.
  void when_awake(std::function<void()> act);

  World world_;
  const SessionId session_;
  const NodePlan plan_;
  const Time began_;
  agent::Lifecycle cycle_;
  OneWay up_;
  OneWay down_;
  rendezvous::HeldLease lease_;
  int beat_turn_ = 0;  // of the timer that counts; those that were set before do nothing
  std::vector<SimWorker> workers_;  // of all rounds
  bool has_session_ = false;
  bool over_ = false;
  bool leaving_ = false;
  bool watched_ = false;
  Time awake_at_{};
  Time timer_at_{};
};

}  // namespace ddprun::sim
