// Forks the ranks of a host and waits for them. All end well, or the first that does not ends the
// others. It knows no collective. Linux. Thread: the one that calls, in a process that has no
// other.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

namespace ddprun::worker {

// Why a rank did not end well. what() is one line with the rank and the reason.
class SpawnError : public std::runtime_error {
 public:
  SpawnError(int rank, const std::string& reason, std::optional<int> exit_code,
             std::optional<int> signal)
      : std::runtime_error("rank " + std::to_string(rank) + ": " + reason),
        rank_(rank),
        exit_code_(exit_code),
        signal_(signal) {}

  int rank() const { return rank_; }
  std::optional<int> exit_code() const { return exit_code_; }  // if it exited by itself
  std::optional<int> signal() const { return signal_; }        // if a signal killed it

 private:
  int rank_;
  std::optional<int> exit_code_;
  std::optional<int> signal_;
};

// More ranks in one host are a typing error.
inline constexpr int kMaxSpawnedRanks = 100;

// Calls body(rank) in `ranks` forked processes, each in a process group of its own, and returns
// when all have ended. A rank that returns ends with exit code 0. No destructor of a static object
// runs there, after exit() neither. Functions that the rank itself has given to atexit() are
// called then. Throws SpawnError if a rank throws, exits with another code, or is killed. If there
// are several it names the first. One that fails because another rank is gone (CollectiveError)
// counts only if there is no other reason. The other ranks, and what they have started in their
// groups, are killed before; nothing of them is left. They are also killed where this process dies.
// Throws std::invalid_argument for a number of ranks that is not 1 … kMaxSpawnedRanks. Throws
// std::logic_error if this process has several threads. A forked process has only the one that
// forked, and locks of the others stay locked. Throws std::system_error if the kernel gives no
// process.
void run_rank_processes(int ranks, const std::function<void(int rank)>& body);

}  // namespace ddprun::worker
