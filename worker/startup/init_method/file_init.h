// Ranks that meet at a shared file, without a launcher, as those of PyTorch's
// init_method="file:///PATH". Rank 0 serves a store and says in the file where; the others read
// that. The file is there while they meet, and no longer. The record of an earlier run, whose rank
// 0 is dead, is known by its silence and replaced. A rank that could belong to another run is
// refused, and then all end with the same line. Reasons are a wrong world size, or a rank that
// comes twice. Blocks the calling thread, for a bounded time.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "proto/worker_env.h"
#include "worker/startup/init_method/own_store.h"

namespace ddprun::worker {

struct FileInitMethod {
  std::string path;  // absolute, on a file system that the hosts of all ranks share
  std::string
      named;  // how the user gave it: `init_method=file:///shared/run1`; errors begin with it
  std::chrono::milliseconds timeout{};
};

// `world` has rank and world_size (above 1) and the job's name, as file_world() says. The rest is
// found out: which ranks share a host, and where the store is. Rank 0 gets the store, the others an
// empty one. Errors, one line each: no such folder or one that cannot be written, a file that is
// not ours. Another start that goes on there, a rank that does not come in time or comes twice.
// World sizes that differ, rank 0 that is gone.
Result<std::unique_ptr<OwnStore>> meet_at_file(WorkerEnv& world, const FileInitMethod& by_file);

}  // namespace ddprun::worker
