#include "worker/startup/spawn.h"

#include <utility>

#include "worker/collective/split.h"
#include "worker/nccl/nccl_collective.h"
#include "worker/shm/shm_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::worker {
namespace {

Result<std::unique_ptr<Collective>> join_spawned(const WorkerEnv& world,
                                                 const SpawnOptions& options, Exchange& exchange) {
  if (options.device == Device::kCuda) {
    return join_nccl({.rank = world.rank,
                      .ranks = world.world_size,
                      .local_rank = world.local_rank,
                      .timeout = options.timeout},
                     exchange);
  }
  if (world.world_size == 1) return make_alone_collective();
  return as_collective(join_shm(
      {.rank = world.rank, .ranks = world.world_size, .timeout = options.timeout}, exchange));
}

}  // namespace

void spawn(int ranks, const std::function<void(Process&)>& body, const SpawnOptions& options) {
  std::unique_ptr<PipeExchange> exchange;
  if (ranks >= 1 && ranks <= kMaxSpawnedRanks) exchange = std::make_unique<PipeExchange>(ranks);
  run_rank_processes(ranks, [&](int rank) {
    Process process;
    process.world.rank = process.world.local_rank = process.world.role_rank = rank;
    process.world.world_size = process.world.local_world_size = process.world.role_world_size =
        ranks;
    auto collective = join_spawned(process.world, options, *exchange);
    if (!collective) throw CollectiveError(collective.error().message());
    process.collective = std::move(*collective);
    body(process);
  });
}

}  // namespace ddprun::worker
