// The agent's end of a fork server (docs/shared_imports.md). It is a process that imports once what
// this node's Python workers will import. It makes each standby by fork. proto/standby.h has the
// messages; the other end is python/fork_server.py. It may end at any time: then workers start
// without it. Loop's thread; owned by Standbys.
#pragma once

#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/clock.h"
#include "agent/core/config.h"
#include "agent/core/worker_variables.h"
#include "agent/processes/children.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

// Returns whether this node's workers import the same, and enough of it to be worth a fork server.
// Reads the script. `program` takes the hook (python_program.h).
bool is_worth_sharing(const AgentConfig& config, const WorkerProgram& program);

// The program of the fork server: that of a worker, before any round. RANK and what else a round
// says stand in it as places; a worker gets its own values.
SpawnSpec fork_server_program(const AgentConfig& config);

class ForkServer {
 public:
  // One standby to be made.
  struct Order {
    int connection = -1;  // its end; the caller closes it afterwards
    std::string page;     // its DDPRUN_PAGE
  };

  // `children` must outlive this. `changed`: its imports are done, it has learned, or it is gone.
  ForkServer(asio::io_context& loop, Children& children, std::function<void()> changed);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;
  ForkServer(ForkServer&&) = delete;
  ForkServer& operator=(ForkServer&&) = delete;
  ~ForkServer() = default;

  // Starts the process. `control` of `program` is set here. Errors: as Children::spawn().
  Result<void> start(SpawnSpec program);
  bool is_importing() const { return state_ == State::kImporting; }
  bool is_ready() const { return state_ == State::kReady; }
  // It makes standbys again afterwards.
  bool is_learning() const { return state_ == State::kLearning; }
  // It can learn what to import, for the next run at least.
  bool can_learn() const { return state_ == State::kReady || state_ == State::kIdle; }
  // Asks for standbys, born into this cgroup (-1: none). If that fails, it is gone.
  void make(const std::vector<Order>& orders, int cgroup_fd);
  // It shall import what the notes of these pages name, and remember it for the next run.
  void learn(const std::vector<std::string>& pages);
  // It shall remember it, and end. Blocks for some milliseconds.
  void remember(const std::vector<std::string>& pages);
  // Ends it now. `why` is told to the user.
  void end(std::string_view why);
  void end();

 private:
  using Socket = asio::local::stream_protocol::socket;
  // kIdle: it has nothing to share.
  enum class State { kNone, kImporting, kReady, kLearning, kIdle };
  // The longest text that it sends.
  static constexpr std::size_t kTextBytes = 256;

  void hear();
  void say_pages(std::string text, const std::vector<std::string>& pages);
  void say(const std::string& text, const std::vector<int>& descriptors);

  Children& children_;
  const std::function<void()> changed_;
  State state_ = State::kNone;
  pid_t pid_ = 0;
  Socket socket_;
  std::array<char, kTextBytes> said_{};
  Alarm imports_end_;
  // A read that is over can no longer be cancelled, and may be delivered after our end.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
