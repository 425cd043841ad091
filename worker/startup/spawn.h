// The ranks of one host without a launcher: forks them, lets them meet, and waits for them. For
// programs and tests that want a few ranks at once. They do not have a launcher's restarts, logs
// and limits. Several hosts meet at a file that they share, each with a spawn() of its own.
//
//   ddprun::worker::spawn(4, [](ddprun::worker::Process& process) {
//     ddprun::worker::DataParallel parallel(net.ptr(), *process.collective);
//     …
//   });
//
// Python has torch.multiprocessing.spawn, which starts a new interpreter for each rank. Here a rank
// is a copy of the process, with everything that was loaded before. Call it on the main thread,
// before the program starts threads (rank_processes.h says why).
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "worker/startup/bootstrap.h"
#include "worker/startup/rank_processes.h"

namespace ddprun::worker {

struct SpawnOptions {
  Device device = Device::kCpu;  // kCuda: rank n takes GPU number n
  // The limit for each wait of the collective.
  std::chrono::seconds timeout = kCollectiveTimeout;
  bool long_time_slices = true;  // as of BootstrapOptions
  // `file:///PATH`, as of BootstrapOptions; empty: the ranks meet over pipes, and are those of this
  // host alone.
  std::string init_method = {};
  // With a file: which of `node_count` calls of spawn() this one is. All of them have the same
  // number of ranks. Rank n of this one is rank node_rank * ranks + n of all.
  int node_rank = 0;
  int node_count = 1;
};

// Calls body() in each of `ranks` processes, with a collective of them all. The world is as a
// launcher gives it (rank, local_rank, world_size, …). Returns when all have returned. Errors are
// those of run_rank_processes(): SpawnError says which rank failed first, and why. A rank of this
// host goes by its number among `ranks`. Throws std::invalid_argument for a wrong init_method,
// node_rank or node_count, too.
void spawn(int ranks, const std::function<void(Process&)>& body, const SpawnOptions& options = {});

}  // namespace ddprun::worker
