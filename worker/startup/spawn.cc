#include <ddprun/process.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "worker/collective/core/split.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/collective/shm/shm_collective.h"
#include "worker/startup/bootstrap.h"
#include "worker/startup/init_method/file_world.h"
#include "worker/startup/init_method/mpi_world.h"
#include "worker/startup/own_gpu.h"
#include "worker/startup/pipe_exchange.h"
#include "worker/startup/rank_processes.h"
#include "worker/startup/time_slices.h"

namespace ddprun {

using namespace worker;

namespace {

// The ranks of a call meet over these.
struct SpawnExchanges {
  PipeExchange devices;
  PipeExchange collective;
};

Result<std::unique_ptr<Collective>> join_spawned_gpus(const WorkerEnv& world,
                                                      const SpawnOptions& options,
                                                      SpawnExchanges& exchanges) {
  const auto gpu = own_gpu({.local_rank = world.local_rank});
  const auto why = why_no_gpus(world.rank, gpu, exchanges.devices);
  if (!why) return why.error();
  if (!why->empty()) return Error(ErrorCode::kInvalidArgument, *why);
  return join_nccl(
      {.rank = world.rank, .ranks = world.world_size, .gpu = *gpu, .timeout = options.timeout},
      exchanges.collective);
}

Result<std::unique_ptr<Collective>> join_spawned(const WorkerEnv& world,
                                                 const SpawnOptions& options,
                                                 SpawnExchanges& exchanges) {
  if (options.device == Device::kCuda) return join_spawned_gpus(world, options, exchanges);
  if (world.world_size == 1) return make_alone_collective();
  if (options.long_time_slices) take_long_time_slices(world.local_world_size);
  return as_collective(
      join_shm({.rank = world.rank, .ranks = world.world_size, .timeout = options.timeout},
               exchanges.collective));
}

constexpr int kMostNodes = kMostRanks / kMaxSpawnedRanks;

// Returns whether the ranks meet at a file. Asked before ranks are forked: each would say the same
// line.
bool meets_at_file(const SpawnOptions& options) {
  const auto path =
      init_file_path(options.init_method, "spawn: init_method=" + options.init_method);
  if (!path) throw std::invalid_argument(path.error().message());
  const bool is_node = options.node_rank >= 0 && options.node_rank < options.node_count &&
                       options.node_count <= kMostNodes;
  if (is_node && (*path || options.node_count == 1)) return path->has_value();
  throw std::invalid_argument(fmt::format(
      "spawn: node_rank={} with node_count={}: expected {}", options.node_rank, options.node_count,
      is_node ? std::string("an init_method=file:///PATH at which several nodes meet")
              : fmt::format("a node_rank from 0 on that is below it, and at most {} nodes",
                            kMostNodes)));
}

void spawn_at_file(int ranks, const std::function<void(Process&)>& body,
                   const SpawnOptions& options) {
  run_rank_processes(ranks, [&](int rank) {
    auto process = bootstrap_forked({.device = options.device,
                                     .timeout = options.timeout,
                                     .long_time_slices = options.long_time_slices,
                                     .init_method = options.init_method,
                                     .rank = options.node_rank * ranks + rank,
                                     .world_size = options.node_count * ranks});
    if (!process) throw CollectiveError(process.error().message());
    process->launched = false;
    body(*process);
  });
}

void spawn_over_pipes(int ranks, const std::function<void(Process&)>& body,
                      const SpawnOptions& options) {
  std::unique_ptr<SpawnExchanges> exchanges;
  if (ranks >= 1 && ranks <= kMaxSpawnedRanks)
    exchanges.reset(new SpawnExchanges{PipeExchange(ranks), PipeExchange(ranks)});
  run_rank_processes(ranks, [&](int rank) {
    WorkerEnv env;
    env.rank = env.local_rank = env.role_rank = rank;
    env.world_size = env.local_world_size = env.role_world_size = ranks;
    auto collective = join_spawned(env, options, *exchanges);
    if (!collective) throw CollectiveError(collective.error().message());
    Process process{.world = world_of(env), .collective = std::move(*collective)};
    body(process);
  });
}

}  // namespace

void spawn(int ranks, const std::function<void(Process&)>& body, const SpawnOptions& options) {
  if (meets_at_file(options)) {
    spawn_at_file(ranks, body, options);
  } else {
    spawn_over_pipes(ranks, body, options);
  }
}

}  // namespace ddprun
