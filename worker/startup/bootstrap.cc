#include "worker/startup/bootstrap.h"

#include <ddprun/process.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "proto/worker_page.h"
#include "worker/collective/core/split.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/collective/shm/shm_collective.h"
#include "worker/startup/gpu_files.h"
#include "worker/startup/hosts.h"
#include "worker/startup/init_method/file_init.h"
#include "worker/startup/init_method/file_world.h"
#include "worker/startup/init_method/mpi_world.h"
#include "worker/startup/init_method/own_store.h"
#include "worker/startup/own_gpu.h"
#include "worker/startup/pipe_exchange.h"
#include "worker/startup/standby.h"
#include "worker/startup/store_board.h"
#include "worker/startup/store_exchange.h"
#include "worker/startup/time_slices.h"

namespace ddprun::worker {
namespace {

std::optional<std::string> environment(std::string_view name) {
  // getenv is safe as long as no other thread changes the environment (bootstrap.h demands it).
  const char* value = std::getenv(std::string(name).c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Returns why this engine cannot work in the world that it finds, in one line. Without this check
// ranks would wait for each other until the deadline, and nobody would learn why.
std::optional<Error> refuse(const WorkerEnv& world) {
  if (world.world_size == 1 || world.use_agent_store) return std::nullopt;
  return Error(
      ErrorCode::kInvalidArgument,
      "no launcher serves a store for this job (TORCHELASTIC_USE_AGENT_STORE is not True): start "
      "the program with ddprun, torchrun, mpirun or srun, or let the ranks meet at a shared file "
      "(DDPRUN_INIT_METHOD=file:///PATH)");
}

// The exchange for this job. A world of one on CUDA needs one too, since NCCL asks for an id. It
// needs no store for that.
Result<std::unique_ptr<Exchange>> meet(const WorkerEnv& world, const BootstrapOptions& options,
                                       const char* name) {
  if (world.world_size == 1) return std::unique_ptr<Exchange>(std::make_unique<PipeExchange>(1));
  auto exchange = meet_over_store(world, options.timeout,
                                  {.name = name, .rank = world.rank, .ranks = world.world_size});
  if (!exchange) return exchange.error();
  return std::unique_ptr<Exchange>(std::move(*exchange));
}

Result<std::unique_ptr<Collective>> join_gpus(const WorkerEnv& world,
                                              const BootstrapOptions& options, int gpu,
                                              Exchange& exchange) {
  const NcclJob job{
      .rank = world.rank, .ranks = world.world_size, .gpu = gpu, .timeout = options.timeout};
  if (world.world_size == 1) return join_nccl(job, exchange);
  auto board = make_store_board(world, "nccl");
  if (!board) return board.error();
  return join_nccl(job, exchange, std::move(*board));
}

// Returns the number of this rank's GPU if all ranks have one of their own. Else all take the CPU,
// and rank 0 says why. Error: the program wants no CPU in place of a GPU.
Result<std::optional<int>> gpu_for(const WorkerEnv& world, const BootstrapOptions& options) {
  if (options.device == Device::kCpu) return std::optional<int>();
  const auto gpu = own_gpu({.local_rank = world.local_rank, .asked = options.gpu});
  auto exchange = meet(world, options, "devices");
  if (!exchange) return exchange.error();
  const auto why = why_no_gpus(world.rank, gpu, **exchange);
  if (!why) return why.error();
  if (why->empty()) return std::optional<int>(*gpu);
  if (!options.cpu_instead) return Error(ErrorCode::kInvalidArgument, *why);
  // On a machine without GPUs that is no news.
  if (world.rank == 0)
    (has_gpu_driver() ? log::warning
                      : log::info)("the ranks take the CPU in place of GPUs: " + *why);
  return std::optional<int>();
}

Result<std::unique_ptr<Collective>> join_cpus(const WorkerEnv& world,
                                              const BootstrapOptions& options) {
  if (world.world_size == 1) return make_alone_collective();
  if (options.long_time_slices) take_long_time_slices(world.local_world_size);
  if (world.local_world_size != world.world_size)
    return join_hosts(world, {.timeout = options.timeout,
                              .wire = options.wire,
                              .congestion_control = options.congestion_control});
  auto exchange = meet(world, options, "shm");
  if (!exchange) return exchange.error();
  const ShmJob job{.rank = world.rank, .ranks = world.world_size, .timeout = options.timeout};
  return as_collective(join_shm(job, **exchange));
}

// The collective for this world. On CPU a world of one needs nobody, also no launcher.
Result<std::unique_ptr<Collective>> join(const WorkerEnv& world, const BootstrapOptions& options) {
  if (auto error = refuse(world)) return *error;
  const auto gpu = gpu_for(world, options);
  if (!gpu) return gpu.error();
  if (!*gpu) return join_cpus(world, options);
  auto exchange = meet(world, options, "nccl");
  if (!exchange) return exchange.error();
  return join_gpus(world, options, **gpu, **exchange);
}

// A start under way: this rank's facts, and the store that it keeps open.
struct Start {
  WorkerEnv env;
  bool launched = false;
  std::shared_ptr<void> store;
};

// Rank 0 serves the store in its own process.
Result<void> meet_at_rank_0(Start& start, const BootstrapOptions& options) {
  auto store = OwnStore::open(start.env, options.timeout);
  if (!store) return store.error();
  start.store = std::move(*store);
  start.env.use_agent_store = true;  // from here on a store is there
  return {};
}

// A launcher that leaves the store to rank 0 says so (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1).
bool leaves_store_to_rank_0(const WorkerEnv& world) {
  return world.world_size > 1 && environment("TORCHELASTIC_USE_AGENT_STORE") == "False";
}

// mpirun and srun start ranks, and serve them no store.
Result<void> meet_without_launcher(Start& start, const BootstrapOptions& options) {
  auto world = mpi_world(environment, ::getppid());
  if (!world) return world.error();
  if (!*world) return {};
  start.env = **world;
  start.launched = true;
  return meet_at_rank_0(start, options);
}

// Finds out by the variables who this process is, and where the others are.
Result<void> meet_by_variables(Start& start, const BootstrapOptions& options) {
  if (options.rank || options.world_size)
    return Error(ErrorCode::kInvalidArgument,
                 "bootstrap: rank and world_size go with init_method=file:///PATH; with env:// set "
                 "RANK and WORLD_SIZE");
  auto decoded = decode_worker_env(environment);
  if (!decoded) return decoded.error();
  start.launched = decoded->has_value();
  if (!start.launched) return meet_without_launcher(start, options);
  start.env = **decoded;
  return leaves_store_to_rank_0(start.env) ? meet_at_rank_0(start, options) : Result<void>();
}

Result<void> meet_by_file(Start& start, const BootstrapOptions& options, FileInitMethod by_file) {
  auto world = file_world({.rank = options.rank, .world_size = options.world_size}, environment,
                          by_file.named);
  if (!world) return world.error();
  start.env = *world;
  start.launched = true;
  if (start.env.world_size == 1) return {};
  by_file.timeout = options.timeout;
  auto store = meet_at_file(start.env, by_file);
  if (!store) return store.error();
  start.store = std::move(*store);
  return {};
}

Result<void> meet_by_method(Start& start, const BootstrapOptions& options) {
  const bool by_program = !options.init_method.empty();
  const std::string method =
      by_program ? options.init_method : environment("DDPRUN_INIT_METHOD").value_or("");
  FileInitMethod by_file;
  by_file.named = (by_program ? "init_method=" : "DDPRUN_INIT_METHOD=") + method;
  auto path = init_file_path(method, by_file.named);
  if (!path) return path.error();
  if (!*path) return meet_by_variables(start, options);
  by_file.path = std::move(**path);
  return meet_by_file(start, options, std::move(by_file));
}

}  // namespace

World world_of(const WorkerEnv& env) {
  return {.rank = env.rank,
          .local_rank = env.local_rank,
          .world_size = env.world_size,
          .local_world_size = env.local_world_size,
          .node_rank = env.node_rank,
          .node_count = env.node_count,
          .role = env.role,
          .role_rank = env.role_rank,
          .role_world_size = env.role_world_size,
          .master_addr = env.master_addr,
          .master_port = env.master_port,
          .run_id = env.run_id,
          .restart_count = env.restart_count,
          .max_restarts = env.max_restarts,
          .job_cookie = env.job_cookie};
}

Result<Process> bootstrap_forked(const BootstrapOptions& options) {
  Start start;
  if (auto met = meet_by_method(start, options); !met) return met.error();
  auto collective = join(start.env, options);
  if (!collective) return collective.error();
  return Process{.world = world_of(start.env),
                 .launched = start.launched,
                 .store = std::move(start.store),
                 .collective = std::move(*collective)};
}

}  // namespace ddprun::worker

namespace ddprun {

bool Process::ending() const { return is_ending(own_worker_page()); }

Process bootstrap(const BootstrapOptions& options) {
  worker::wait_if_standby(own_worker_page());
  note_first_line(own_worker_page());
  auto process = worker::bootstrap_forked(options);
  if (!process) throw StartError(process.error().message());
  return std::move(*process);
}

}  // namespace ddprun
