#include "worker/collective/core/flight_record.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

namespace ddprun::worker {
namespace {

using Json = nlohmann::ordered_json;

const char* torch_name_of(OperationKind kind) {
  constexpr std::array kNames{"all_reduce", "all_reduce", "all_gather", "barrier",
                              "broadcast",  "send",       "recv",       "reduce_scatter",
                              "all_gather", "all_to_all"};
  return kNames.at(static_cast<std::size_t>(kind));
}

// As c10::toString() says it.
const char* torch_name_of(Dtype dtype) {
  constexpr std::array kNames{"Float", "Double", "Half", "BFloat16", "Int", "Long", "Char", "Byte"};
  return kNames.at(static_cast<std::size_t>(dtype));
}

// From a moment of steady_clock to one of the wall clock; PyTorch's times are such.
std::int64_t wall_ns(std::int64_t steady_ns) {
  if (steady_ns == 0) return 0;
  const auto ns = [](auto clock) {
    return std::chrono::nanoseconds(clock.time_since_epoch()).count();
  };
  return steady_ns + ns(std::chrono::system_clock::now()) - ns(std::chrono::steady_clock::now());
}

Json entry_of(const Operation& operation, std::size_t record, const FlightRecordFacts& facts) {
  const bool transfer = is_transfer(operation.kind);
  const bool done = operation.done_ns != 0;
  const Json sizes = Json::array({Json::array({operation.bytes / size_of(operation.dtype)})});
  const Json dtypes = Json::array({torch_name_of(operation.dtype)});
  Json entry = {
      {"record_id", record},
      {"pg_id", 0},
      {"process_group", Json::array({"0", "default_pg"})},
      {"collective_seq_id", transfer ? 0 : operation.sequence},
      {"p2p_seq_id", transfer ? operation.sequence : 0},
      {"op_id", operation.number},
      {"name", operation.name.text()},
      {"profiling_name", fmt::format("{}:{}", facts.collective, torch_name_of(operation.kind))},
      {"time_created_ns", wall_ns(operation.begun_ns)},
      {"input_sizes", sizes},
      {"input_dtypes", dtypes},
      {"output_sizes", sizes},
      {"output_dtypes", dtypes},
      {"state", done ? "completed" : "started"},
      {"time_discovered_started_ns", wall_ns(operation.begun_ns)},
      {"time_discovered_completed_ns", wall_ns(operation.done_ns)},
      {"retired", done},
      {"timeout_ms", facts.timeout.count()},
      {"is_p2p", transfer},
      {"frames", Json::array()}};
  if (done)
    entry["duration_ms"] = static_cast<double>(operation.done_ns - operation.begun_ns) / 1e6;
  return entry;
}

// The numbers of the last operations that were begun, and of the last one that was completed.
Json status_of(const std::vector<Operation>& operations) {
  std::uint32_t begun = 0;
  std::uint32_t completed = 0;
  for (const Operation& operation : operations) {
    if (is_transfer(operation.kind)) continue;
    begun = operation.sequence;
    if (operation.done_ns != 0) completed = operation.sequence;
  }
  return {{"last_enqueued_collective", begun},
          {"last_started_collective", begun},
          {"last_completed_collective", completed}};
}

}  // namespace

std::string flight_record(const OperationRing& ring, const FlightRecordFacts& facts) {
  std::vector<Operation> operations;
  for (std::uint32_t back = OperationRing::kLength; back-- > 0;) {
    if (const auto found = ring.find(ring.latest() - back)) operations.push_back(*found);
  }
  Json entries = Json::array();
  for (const Operation& operation : operations)
    entries.push_back(entry_of(operation, entries.size(), facts));
  std::vector<int> ranks(static_cast<std::size_t>(facts.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Json record = {
      {"version", "2.10"},
      {"rank", facts.rank},
      {"pg_config",
       {{"0", {{"name", "0"}, {"desc", "default_pg"}, {"ranks", Json(ranks).dump()}}}}},
      {"pg_status", {{"0", status_of(operations)}}},
      {"entries", entries}};
  // A name may have any bytes.
  return record.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::worker
