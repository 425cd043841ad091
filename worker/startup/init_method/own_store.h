// The store of a job that no launcher serves: rank 0 serves it in its own process, on a thread. The
// others find it, at one of a few ports or by a file (file_init.h). It is there until rank 0
// gives it back.
#pragma once

#include <chrono>
#include <memory>

#include "base/result.h"
#include "proto/worker_env.h"

namespace ddprun::worker {

class OwnStore {
 public:
  // The job's ports are kJobPorts from world.master_port on. Rank 0 takes the first free one;
  // the others try them until they find the store of this very job. Sets world.master_port to the
  // port. Errors: kUnavailable, all are taken; kTimedOut, no store of the job was found.
  static Result<std::unique_ptr<OwnStore>> open(WorkerEnv& world, std::chrono::seconds limit);

  // Rank 0's, at a port that the kernel picks, for ranks that learn it otherwise. It listens at all
  // addresses of this host; at loopback alone where local_world_size says that all ranks are here.
  // Sets world.master_port. Errors are those of bind_listener().
  static Result<std::unique_ptr<OwnStore>> serve(WorkerEnv& world);

  OwnStore() = default;
  OwnStore(const OwnStore&) = delete;
  OwnStore& operator=(const OwnStore&) = delete;
  virtual ~OwnStore() = default;
};

}  // namespace ddprun::worker
