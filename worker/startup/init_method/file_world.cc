#include "worker/startup/init_method/file_world.h"

#include <fmt/format.h>

#include <utility>

#include "worker/startup/init_method/mpi_world.h"

namespace ddprun::worker {
namespace {

constexpr std::string_view kScheme = "file://";

Error not_accepted(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// Returns a world of one role, as the ranks of a program are that no launcher starts.
WorkerEnv world_of(int rank, int world_size) {
  WorkerEnv world;
  world.rank = world.role_rank = rank;
  world.world_size = world.role_world_size = world_size;
  return world;
}

// Returns the world that the program names. It needs no variable, and those that are set may be
// about another world.
Result<WorkerEnv> world_of_preference(const RankPreference& preference, std::string_view named) {
  if (!preference.rank || !preference.world_size)
    return not_accepted(
        fmt::format("{}: rank and world_size go together, one is not given", named));
  WorkerEnv world = world_of(*preference.rank, *preference.world_size);
  if (world.world_size >= 1 && world.rank >= 0 && world.rank < world.world_size) return world;
  return not_accepted(
      fmt::format("{}: rank={} with world_size={}: expected a rank from 0 on that is below it",
                  named, world.rank, world.world_size));
}

// The file takes the place of the master: what is said of one is not read.
Result<WorkerEnv> world_of_variables(const EnvLookup& env) {
  const auto world = decode_worker_env([&env](std::string_view name) -> std::optional<std::string> {
    if (name == "MASTER_ADDR") return "127.0.0.1";
    if (name == "MASTER_PORT") return "0";
    return env(name);
  });
  if (!world) return world.error();
  return world->value();
}

Result<WorkerEnv> world_of_starter(const EnvLookup& env, std::string_view named) {
  const auto started = started_rank(env);
  if (!started) return started.error();
  if (!*started)
    return not_accepted(
        fmt::format("{}: nothing says which rank this process is: set RANK and WORLD_SIZE, give "
                    "rank and world_size to bootstrap(), or start it with mpirun or srun",
                    named));
  const StartedRank& said = **started;
  if (said.rank >= said.ranks)
    return not_accepted(
        fmt::format("{}: the starter says rank {} of {}", named, said.rank, said.ranks));
  WorkerEnv world = world_of(said.rank, said.ranks);
  if (said.one_host) world.local_world_size = said.ranks;
  if (!said.job.empty()) world.run_id = said.job;
  return world;
}

}  // namespace

Result<std::optional<std::string>> init_file_path(std::string_view address,
                                                  std::string_view named) {
  if (address.empty() || address == "env://") return std::optional<std::string>();
  const auto path = address.substr(address.starts_with(kScheme) ? kScheme.size() : address.size());
  const bool is_path = path.size() > 1 && path.front() == '/' && path.back() != '/';
  if (!is_path || path.find_first_of("?#\n") != std::string_view::npos)
    return not_accepted(
        fmt::format("{}: expected env:// or file:///PATH, an absolute path without ? and #",
                    named.substr(0, named.find('\n'))));
  return std::optional(std::string(path));
}

Result<WorkerEnv> file_world(const RankPreference& preference, const EnvLookup& env,
                             std::string_view named) {
  const bool by_program = preference.rank || preference.world_size;
  const bool by_variables = env("RANK") || env("WORLD_SIZE");
  auto world = by_program     ? world_of_preference(preference, named)
               : by_variables ? world_of_variables(env)
                              : world_of_starter(env, named);
  if (world && world->world_size > kMostRanks)
    return not_accepted(fmt::format("{}: a world of {} ranks, expected at most {}", named,
                                    world->world_size, kMostRanks));
  return world;
}

}  // namespace ddprun::worker
