#include "proto/worker_env.h"

#include <limits>

#include "base/numbers.h"

namespace ddprun {
namespace {

// One row of the table. It serves both directions, so that a name cannot be written one way and
// read another. Exactly one of the member pointers is set; it says the type of the field.
struct Row {
  std::string_view name;
  // Must be in a worker's environment. If another variable is missing, WorkerEnv's default stands.
  bool required = false;
  int WorkerEnv::*number = nullptr;
  std::string WorkerEnv::*text = nullptr;
  std::uint16_t WorkerEnv::*port = nullptr;
  bool WorkerEnv::*flag = nullptr;
};

// The order is the order of encode().
constexpr Row kTable[] = {
    {.name = "RANK", .required = true, .number = &WorkerEnv::rank},
    {.name = "LOCAL_RANK", .number = &WorkerEnv::local_rank},
    {.name = "WORLD_SIZE", .required = true, .number = &WorkerEnv::world_size},
    {.name = "LOCAL_WORLD_SIZE", .number = &WorkerEnv::local_world_size},
    {.name = "GROUP_RANK", .number = &WorkerEnv::node_rank},
    {.name = "GROUP_WORLD_SIZE", .number = &WorkerEnv::node_count},
    {.name = "ROLE_NAME", .text = &WorkerEnv::role},
    {.name = "ROLE_RANK", .number = &WorkerEnv::role_rank},
    {.name = "ROLE_WORLD_SIZE", .number = &WorkerEnv::role_world_size},
    {.name = "MASTER_ADDR", .required = true, .text = &WorkerEnv::master_addr},
    {.name = "MASTER_PORT", .required = true, .port = &WorkerEnv::master_port},
    {.name = "TORCHELASTIC_RUN_ID", .text = &WorkerEnv::run_id},
    {.name = "TORCHELASTIC_RESTART_COUNT", .number = &WorkerEnv::restart_count},
    {.name = "TORCHELASTIC_MAX_RESTARTS", .number = &WorkerEnv::max_restarts},
    {.name = "TORCHELASTIC_USE_AGENT_STORE", .flag = &WorkerEnv::use_agent_store},
    {.name = "TORCHELASTIC_ERROR_FILE", .text = &WorkerEnv::error_file},
    {.name = "DDPRUN_JOB", .text = &WorkerEnv::job_cookie},
};

std::string encode_field(const Row& row, const WorkerEnv& env) {
  if (row.number != nullptr) return std::to_string(env.*row.number);
  if (row.port != nullptr) return std::to_string(env.*row.port);
  // Python's spelling: PyTorch compares with str(True) (torch/distributed/rendezvous.py).
  if (row.flag != nullptr) return env.*row.flag ? "True" : "False";
  return env.*row.text;
}

Error bad_value(const Row& row, const std::string& value, std::string_view accepted) {
  return {ErrorCode::kInvalidArgument, std::string(row.name) + "=" + value +
                                           " in the environment: expected " +
                                           std::string(accepted)};
}

// The whole text must be a number from 0 to `max`.
template <typename Number>
bool parse(const std::string& text, Number max, Number& number) {
  const auto parsed = parse_whole<Number>(text);
  if (!parsed || *parsed < 0 || *parsed > max) return false;
  number = *parsed;
  return true;
}

// Reads one field into `env`. A flag is true only for "True", as in PyTorch.
std::optional<Error> decode_field(const Row& row, const std::string& value, WorkerEnv& env) {
  if (row.number != nullptr && !parse(value, std::numeric_limits<int>::max(), env.*row.number))
    return bad_value(row, value, "a whole number, 0 or more");
  if (row.port != nullptr &&
      !parse(value, std::numeric_limits<std::uint16_t>::max(), env.*row.port))
    return bad_value(row, value, "a port, 0 to 65535");
  if (row.flag != nullptr) env.*row.flag = value == "True";
  if (row.text != nullptr) env.*row.text = value;
  return std::nullopt;
}

// Finds variables that do not fit each other (set by hand, or left by another launcher). Without
// this check the workers would wait for ranks that do not exist.
std::optional<Error> check_ranks(const WorkerEnv& env) {
  const auto inside = [](int rank, int size) { return size >= 1 && rank < size; };
  if (!inside(env.rank, env.world_size))
    return Error(ErrorCode::kInvalidArgument,
                 "RANK=" + std::to_string(env.rank) +
                     " with WORLD_SIZE=" + std::to_string(env.world_size) +
                     " in the environment: RANK must be below WORLD_SIZE");
  if (env.local_world_size < 1 || env.local_world_size > env.world_size)
    return Error(
        ErrorCode::kInvalidArgument,
        "LOCAL_WORLD_SIZE=" + std::to_string(env.local_world_size) +
            " in the environment: expected 1 to WORLD_SIZE=" + std::to_string(env.world_size));
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> encode(const WorkerEnv& env) {
  std::vector<std::pair<std::string, std::string>> variables;
  variables.reserve(std::size(kTable));
  for (const Row& row : kTable) variables.emplace_back(row.name, encode_field(row, env));
  return variables;
}

Result<std::optional<WorkerEnv>> decode_worker_env(const EnvLookup& lookup) {
  // Only if both are missing. One alone is a mistake, and the loop below says which is missing.
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) return std::optional<WorkerEnv>();
  WorkerEnv env;
  for (const Row& row : kTable) {
    const std::optional<std::string> value = lookup(row.name);
    if (value) {
      if (auto error = decode_field(row, *value, env)) return *error;
    } else if (row.required) {
      return Error(ErrorCode::kNotFound,
                   std::string(row.name) +
                       " is not set, though RANK or WORLD_SIZE is: start this program with ddprun, "
                       "or unset them to run it alone");
    }
  }
  if (auto error = check_ranks(env)) return *error;
  return std::optional<WorkerEnv>(env);
}

}  // namespace ddprun
