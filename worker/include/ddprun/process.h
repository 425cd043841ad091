// From a worker's environment to a ready collective. bootstrap() reads the environment that ddprun
// (or torchrun, mpirun, srun) gave this process. It connects to the job's store and meets the other
// ranks. Keeps nothing itself; the caller owns what it returns. Call it on the main thread, before
// the program starts threads that could change the environment.
//
//   ddprun::Process process = ddprun::bootstrap();
//   ddprun::DataParallel parallel(net.ptr(), *process.collective);
//
// spawn() does without a launcher. It forks the ranks of one host, lets them meet, and waits for
// them. It is for programs and tests that want a few ranks at once. They do not have a launcher's
// restarts, logs and limits. Several hosts meet at a file that they share, each with a spawn() of
// its own. Python has torch.multiprocessing.spawn, which starts a new interpreter for each rank.
// Here a rank is a copy of the process, with everything that was loaded before.
#pragma once

#include <ddprun/collective.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace ddprun {

// The time for which a rank waits for the others before it gives up. The limit is long because a
// rank may load data or save a checkpoint meanwhile. On CPU the error names the missing rank. A
// rank that died is noticed much sooner, within some 10 ms. If ranks share cores, it may take up to
// 80 ms more. Each rank waits for its turn on a core then.
inline constexpr std::chrono::seconds kCollectiveTimeout{600};

// The format in which sums of float32 travel between hosts. bfloat16 halves the bytes: each rank's
// elements are rounded once, added in float32, and the result is rounded once. All ranks get the
// same bits.
enum class Wire : std::uint8_t { kExact, kBFloat16 };

// The congestion control of the connections between ranks, by the kernel's name for it (tcp(7),
// TCP_CONGESTION). An empty name means the host's. BBR sends by a timer. That takes up to a third
// more time for a sum between two hosts with two ranks each. If the kernel does not have it, or
// does not allow it, the host's stays.
inline constexpr const char* kCongestionControl = "cubic";

// Options of bootstrap(), on this rank.
struct BootstrapOptions {
  Device device = Device::kCpu;  // where the model will live; the same on all ranks
  // With kCuda, all ranks take the CPU if one of them has no GPU of its own. Rank 0 logs why, as a
  // warning if its machine has a GPU's driver. The same on all ranks.
  bool cpu_instead = false;
  // The number of this rank's GPU among those that it sees. If it is unset, it is the only one that
  // this rank sees, or that of its local_rank. Schedulers and containers show each rank one.
  std::optional<int> gpu = std::nullopt;
  // The limit for meeting the other ranks, and then for each wait of the collective.
  std::chrono::seconds timeout = kCollectiveTimeout;
  // The format in which sums of float32 travel between hosts, on CPU: those of TensorCollective,
  // too. The same on all ranks.
  Wire wire = Wire::kExact;
  // The algorithm of the connections between hosts, on CPU. An empty name means the host's.
  std::string congestion_control = kCongestionControl;
  // On CPU, if ranks of this host share cores: long time slices, so that fewer switches happen.
  bool long_time_slices = true;
  // The way in which the ranks meet. `env://`: by the variables of a launcher or of mpirun and
  // srun. `file:///PATH`: by a file on a file system that all of them share. If it is empty, it is
  // DDPRUN_INIT_METHOD, and `env://` if that is not set.
  std::string init_method = {};
  // This rank, 0 … world_size-1. With a file alone, and with world_size. If it is unset, it is
  // RANK, or what mpirun and srun say.
  std::optional<int> rank = std::nullopt;
  // The number of ranks. With a file alone, and with rank. If it is unset, it is WORLD_SIZE, or
  // what mpirun and srun say.
  std::optional<int> world_size = std::nullopt;
};

// This rank's place in the job, as the launcher gave it. The defaults are a world of one.
struct World {
  int rank = 0;                           // 0 … world_size-1 over all nodes
  int local_rank = 0;                     // 0 … local_world_size-1 on this node
  int world_size = 1;                     // ranks of all nodes
  int local_world_size = 1;               // ranks of this node
  int node_rank = 0;                      // 0 … node_count-1
  int node_count = 1;                     // nodes of the job
  std::string role = "default";           // --role of this node
  int role_rank = 0;                      // 0 … role_world_size-1
  int role_world_size = 1;                // ranks of this role
  std::string master_addr = "127.0.0.1";  // the host of the job's store
  std::uint16_t master_port = 0;          // its port
  std::string run_id = "none";            // --rdzv-id: the job's name
  int restart_count = 0;                  // of the workers so far
  int max_restarts = 0;                   // how many there may be
  std::string job_cookie;  // DDPRUN_JOB: this job on this machine; empty: no ddprun started it

  bool operator==(const World&) const = default;
};

// The reason why there is no collective. what() is one line for people.
class StartError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The result of bootstrap(), which the training program owns.
struct Process {
  World world;            // of one rank, if `launched` is false
  bool launched = false;  // false: started by hand, without a launcher's environment
  // The job's store, which rank 0 serves, if no launcher serves one.
  std::shared_ptr<void> store;
  std::unique_ptr<Collective> collective;  // not null

  // Whether the job ends soon, and this rank should save and end now (docs/preemption.md). Asked at
  // the same place of the loop, it is true after the same step on all ranks. From the first call
  // on, this rank gets no signal for it. Any thread.
  bool ending() const;
};

// Says why this process can have no GPU, in one line. Empty if it can. This rank alone.
std::string why_no_gpu();

// Meets the other ranks of the job and returns when all are there. Without a launcher's environment
// it makes a world of one. mpirun and srun start a process for each rank. Then it makes the world
// of those, and rank 0 serves the store. Ranks that meet at a file need no starter at all. On CPU
// the ranks of a host use shared memory, and hosts use TCP; on CUDA they use NCCL. All ranks must
// call it.
//
// Throws StartError for a broken environment, and if nothing names the host of rank 0. Also for a
// file at which ranks cannot meet. Also if no launcher serves a store, nothing answers at
// MASTER_ADDR:MASTER_PORT, or hosts cannot reach each other. Also if there is no GPU, or a rank
// does not come within the timeout. Throws LoggedError if shared memory cannot be had: rank 0 has
// logged why, one line for the host. ddprun may start this program as a standby (docs/recovery.md):
// then it waits here until it is needed.
Process bootstrap(const BootstrapOptions& options = {});

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
