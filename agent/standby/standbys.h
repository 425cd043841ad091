// The standbys of this node. Starts them when the plan says so, hears that they wait, and lets them
// go (proto/standby.h). A standby is the worker's own command line. A Python program has the hook
// in front (python/) and waits before any line of the user. A program of the engine waits in
// bootstrap(). It becomes the worker when it is given the new round's variables and its stdout and
// stderr. Every standby may end at any time: then the worker is started cold.
//
// If imports are shared, a fork server makes the standbys, in milliseconds. So the first workers
// come of standbys too. Loop's thread; owned by WorkerGroup.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/config.h"
#include "agent/core/incident.h"
#include "agent/core/standby_plan.h"
#include "agent/processes/children.h"
#include "agent/standby/death_watch.h"
#include "agent/standby/fork_server.h"
#include "agent/standby/worker_pages.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

class Standbys {
 public:
  // `config` and `children` must outlive this. `cgroup` answers the one into which standbys are
  // born, as Children::use_cgroup() takes it.
  // `dying` is called when a worker is noticed early (death_watch.h), with its local rank.
  Standbys(asio::io_context& loop, const AgentConfig& config, Children& children,
           std::function<int()> cgroup, DyingHandler dying);
  Standbys(const Standbys&) = delete;
  Standbys& operator=(const Standbys&) = delete;
  Standbys(Standbys&&) = delete;
  Standbys& operator=(Standbys&&) = delete;
  ~Standbys() = default;

  // Makes the scratch folder with the pages and, for a Python program, the hook. Starts the fork
  // server. If that fails, workers start without them; the log says why.
  void open();

  // Calls `start` as soon as an attempt should start its workers. At once, unless they can come of
  // standbys that are being made. Bounded in time.
  void prepare(std::function<void()> start);
  // It is not called any more.
  void forget_start();

  // Makes `worker` complete, before it is started: its page, and what leads it to the hook. If its
  // standby waits, that becomes the worker instead: its pid; the caller then starts nothing. Blocks
  // for some milliseconds.
  std::optional<pid_t> begin_worker(SpawnSpec& worker);
  // All workers of the attempt have started. `may_restart`: another attempt can follow this one.
  void attempt_started(bool may_restart);
  void attempt_ended();
  // All workers have ended well: no standby will be needed.
  void expect_no_restart();
  // Ends all of them: none will be needed any more.
  void end();
  // Also removes the scratch folder. No worker is alive any more.
  void remove_files();

  // The scratch folder. Empty if there is none.
  const std::string& folder() const { return scratch_; }

  // Null if there are none.
  const WorkerPages* pages() const { return pages_ ? &*pages_ : nullptr; }
  // Returns how far the workers say they are, by local rank. Empty if there are no pages.
  std::vector<WorkerProgress> progress() const;

 private:
  using Socket = asio::local::stream_protocol::socket;
  struct Standby;
  // How a worker was started cold: its standby is started the same way.
  struct Cold {
    std::string file;
    std::vector<std::string> argv;
    std::vector<std::string> env;
    bool is_python = false;  // and takes the hook
  };

  Result<void> make_files();
  void start_fork_server();
  void fork_server_changed();
  void go_on();
  bool is_forking() const;
  void end_forks();
  void fork_late();
  void fork_missing();
  void learn();
  bool let_go(Standby& standby, const SpawnSpec& worker);
  void look();
  void watch_for_deaths();
  bool can_wait(int local_rank) const;
  bool hook_is_there() const;
  void warm_next();
  bool has_room();
  Result<void> warm(int local_rank);
  bool warms() const { return may_restart_ && config_.standby != StandbyMode::kOff; }
  bool knows(Standby& standby, std::string_view said);
  void hear(const std::shared_ptr<Standby>& standby);
  void heard(const std::shared_ptr<Standby>& standby, std::string_view said);
  static void tell_why(int local_rank, std::string_view why);
  void drop(int local_rank, std::string_view why, bool for_good);

  asio::io_context& loop_;
  const AgentConfig& config_;
  Children& children_;
  const std::function<int()> cgroup_;
  StandbyPlan plan_;
  ForkServer fork_server_;
  std::function<void()> start_;  // prepare(); null: nobody waits
  bool is_asked_ = false;        // the fork server, for the workers of start_
  bool is_late_ = false;         // it learns for too long
  bool has_learned_ = false;
  bool may_restart_ = false;  // another attempt can follow
  Alarm forks_end_;
  std::string scratch_;      // empty: there are no files
  bool takes_hook_ = false;  // the workers' program
  std::optional<WorkerPages> pages_;
  Cold shared_;                                     // how the fork server was started
  std::vector<Cold> cold_;                          // by local rank
  std::vector<std::shared_ptr<Standby>> standbys_;  // by local rank; null: none
  Time release_until_{};
  Alarm look_;
  DeathWatch deaths_;  // of the workers whose pages say that they have begun
};

}  // namespace ddprun::agent
