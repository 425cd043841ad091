// The ranks of one host without a launcher: forks them, lets them meet, and waits for them. For
// programs and tests that want a few ranks at once. They do not have a launcher's restarts, logs
// and limits. Several hosts meet at a file that they share, each with a spawn() of its own.
//
//   ddprun::spawn(4, [](ddprun::Process& process) {
//     ddprun::DataParallel parallel(net.ptr(), *process.collective);
//     …
//   });
//
// Python has torch.multiprocessing.spawn, which starts a new interpreter for each rank. Here a rank
// is a copy of the process, with everything that was loaded before. Call it on the main thread,
// before the program starts threads.
#pragma once

#include <ddprun/process.h>

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

namespace ddprun {

// The reason why a rank did not end well. what() is one line with the rank and the reason.
class SpawnError : public std::runtime_error {
 public:
  // Makes an error of one line. The rank ended with an exit code or by a signal.
  SpawnError(int rank, const std::string& reason, std::optional<int> exit_code,
             std::optional<int> signal)
      : std::runtime_error("rank " + std::to_string(rank) + ": " + reason),
        rank_(rank),
        exit_code_(exit_code),
        signal_(signal) {}

  int rank() const { return rank_; }                           // of those that were started
  std::optional<int> exit_code() const { return exit_code_; }  // if it exited by itself
  std::optional<int> signal() const { return signal_; }        // if a signal killed it

 private:
  int rank_;
  std::optional<int> exit_code_;
  std::optional<int> signal_;
};

// The most ranks of one call: more in one host are a typing error.
inline constexpr int kMaxSpawnedRanks = 100;

// Options of spawn().
struct SpawnOptions {
  Device device = Device::kCpu;  // kCuda: rank n takes the n-th GPU that it sees
  // The limit for each wait of the collective.
  std::chrono::seconds timeout = kCollectiveTimeout;
  bool long_time_slices = true;  // as of BootstrapOptions
  // `file:///PATH`, as of BootstrapOptions. If it is empty, the ranks meet over pipes, and are
  // those of this host alone.
  std::string init_method = {};
  // With a file, the number of this call among the `node_count` calls of spawn(). All of them have
  // the same number of ranks. Rank n of this one is rank node_rank * ranks + n of all.
  int node_rank = 0;
  int node_count = 1;  // calls of spawn() that meet at the file
};

// Calls body() in each of `ranks` forked processes, with a collective of them all. The world
// is as a launcher gives it (rank, local_rank, world_size, …). Returns when all have
// returned. A rank that returns ends with exit code 0. No destructor of a static object runs
// there, after exit() neither. Functions that the rank itself has given to atexit() are
// called then.
//
// Throws SpawnError if a rank throws, exits with another code, or is killed. It names the first
// one, by its number among `ranks`. One that fails because another rank is gone (CollectiveError)
// counts only if there is no other reason. The other ranks, and the processes that they have
// started in their groups, are killed before. They are also killed if this process dies.
//
// Throws std::invalid_argument for a number of ranks that is not 1 … kMaxSpawnedRanks. Also
// for a wrong init_method, node_rank or node_count. Throws std::logic_error if this process
// has several threads. A forked process has only the one that forked, and locks of the others
// stay locked. Throws std::system_error if the kernel gives no process.
void spawn(int ranks, const std::function<void(Process&)>& body, const SpawnOptions& options = {});

}  // namespace ddprun
