// The words of single values: endpoints, member lists, --rdzv-conf, node counts, ranks, seconds,
// signals, CPU lists, and a worker's environment. An accepted value is within its bounds, and is
// the same when it is written and read again.
#include "launcher/options/flag_values.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>

#include "base/allowed_cpus.h"
#include "base/assert.h"
#include "launcher/job/command.h"
#include "launcher/job/visible_devices.h"
#include "launcher/options/numa.h"
#include "launcher/options/signal_values.h"
#include "proto/worker_env.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds kMostMs{1'000'000'000'000};

std::string written(const Endpoint& endpoint) {
  const bool is_v6 = endpoint.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + endpoint.host + "]" : endpoint.host;
  return endpoint.port ? fmt::format("{}:{}", host, *endpoint.port) : host;
}

void read_endpoints(std::string_view text) {
  if (const auto endpoint = parse_endpoint(text)) {
    const auto again = parse_endpoint(written(*endpoint));
    DDPRUN_ASSERT(again.has_value() && *again == *endpoint);
  }
  const auto members = parse_endpoints(text);
  if (!members) return;
  DDPRUN_ASSERT(!members->empty() && members->size() <= kMaxEtcdMembers);
  for (const Endpoint& member : *members) DDPRUN_ASSERT(!member.host.empty() && member.port != 0);
}

void read_conf(std::string_view text) {
  const auto conf = parse_rendezvous_conf(text);
  if (!conf) return;
  const auto& settings = conf->settings;
  for (const std::chrono::milliseconds time :
       {settings.join_timeout, settings.last_call, std::chrono::milliseconds(conf->read_timeout),
        std::chrono::milliseconds(conf->keep_alive_interval),
        std::chrono::milliseconds(conf->timeout)})
    DDPRUN_ASSERT(time.count() > 0 && time <= kMostMs);
  for (const auto time : {settings.resize_wait, settings.resize_interval})
    DDPRUN_ASSERT(time.count() >= 0 && time <= kMostMs);
  DDPRUN_ASSERT(conf->keep_alive_max_attempt > 0 && conf->keep_alive_max_attempt <= kMaxKeepAlive);
  DDPRUN_ASSERT(conf->keep_alive_interval.count() <= kMaxKeepAlive);
}

void read_counts(std::string_view text) {
  if (const auto nodes = parse_node_count(text)) {
    DDPRUN_ASSERT(0 < nodes->min && nodes->min <= nodes->max && nodes->max <= kMaxNodes);
    const auto again = parse_node_count(fmt::format("{}:{}", nodes->min, nodes->max));
    DDPRUN_ASSERT(again.has_value() && *again == *nodes);
  }
  if (const auto number = parse_int(text))
    DDPRUN_ASSERT(parse_int(std::to_string(*number)) == number);
  if (const auto number = parse_number(text)) DDPRUN_ASSERT(*number - *number == 0);  // finite
}

void read_ranks(std::string_view text) {
  // Any number: ranks that this node does not have are allowed.
  if (const auto ranks = parse_ranks(text)) {
    const auto again = parse_ranks(fmt::format("{}", fmt::join(*ranks, ",")));
    DDPRUN_ASSERT(again.has_value() && *again == *ranks);
  }
  if (const auto streams = parse_std_spec(text)) {
    for (const auto& [rank, which] : streams->by_rank) {
      DDPRUN_ASSERT(rank >= 0 && streams->of(rank) == which);
    }
    DDPRUN_ASSERT(!streams->none() || !has_out(streams->of(0)));
  }
  DDPRUN_ASSERT(!parse_texts(text).empty());
}

void read_times(std::string_view text) {
  if (const auto seconds = parse_seconds(text))
    DDPRUN_ASSERT(seconds->count() >= 0 && *seconds <= kMostMs);
  if (const auto backoff = parse_backoff(text))
    DDPRUN_ASSERT(backoff->base.count() >= 0 && backoff->base <= backoff->max &&
                  backoff->max <= kMostMs);
}

void read_signals(std::string_view text) {
  const SignalList list = parse_signal_list(text);
  for (const int signal : list.signals) DDPRUN_ASSERT(0 < signal && signal < 65);
  if (const auto map = parse_signal_map(text))
    for (const auto& [from, to] : *map) DDPRUN_ASSERT(0 < from && from < 65 && 0 < to && to < 65);
}

void read_devices(std::string_view text) {
  using Uuids = std::vector<std::string>;
  for (const Uuids& uuids : {Uuids{}, Uuids{"GPU-1", ""}, Uuids{"GPU-12", "GPU-13", "GPU-2"}}) {
    const CudaDevices cuda = visible_to_cuda(uuids, text);
    DDPRUN_ASSERT(cuda.instances >= 0 && (cuda.instances == 0 || cuda.gpus.empty()));
    for (const auto& devices :
         {cuda.gpus, visible_to_rocr(uuids, text), visible_to_hip(uuids, text)}) {
      DDPRUN_ASSERT(devices.size() <= uuids.size());
      for (const int device : devices)
        DDPRUN_ASSERT(kSomeDevice <= device && device < static_cast<int>(uuids.size()));
    }
  }
  for (const int most : {0, 3}) {
    for (const bool is_flat : {false, true})
      DDPRUN_ASSERT(std::ssize(visible_to_level_zero(most, text, is_flat)) <= most);
    for (const int visible : {visible_to_selector(most, text), visible_to_ascend(most, text),
                              visible_to_gaudi(most, text)})
      DDPRUN_ASSERT(0 <= visible && visible <= most);
  }
}

void read_cpus(std::string_view text) {
  kind_of_head(text);
  read_devices(text);
  const auto cpus = parse_cpu_ranges(text);
  if (!cpus) return;
  for (const int cpu : *cpus) DDPRUN_ASSERT(0 <= cpu && cpu < kMaxCpus);
}

void read_worker_env(std::string_view text) {
  std::map<std::string, std::string, std::less<>> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto equals = line.find('=');
    if (equals != std::string_view::npos)
      variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  const auto look_up = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const auto env = decode_worker_env(look_up);
  if (!env || !*env) return;
  const WorkerEnv& worker = **env;
  DDPRUN_ASSERT(0 <= worker.rank && worker.rank < worker.world_size);
  // People set LOCAL_RANK alone, without a LOCAL_WORLD_SIZE that it must be below.
  DDPRUN_ASSERT(0 <= worker.local_rank && 1 <= worker.local_world_size);
  DDPRUN_ASSERT(worker.local_world_size <= worker.world_size);
  variables.clear();
  for (const auto& [name, value] : encode(worker)) variables[name] = value;
  const auto again = decode_worker_env(look_up);
  DDPRUN_ASSERT(again.has_value() && *again == *env);
}

}  // namespace
}  // namespace ddprun::launcher

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::launcher;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(8)) {
    case 0:
      read_endpoints(script.all());
      break;
    case 1:
      read_conf(script.all());
      break;
    case 2:
      read_counts(script.all());
      break;
    case 3:
      read_ranks(script.all());
      break;
    case 4:
      read_times(script.all());
      break;
    case 5:
      read_signals(script.all());
      break;
    case 6:
      read_cpus(script.all());
      break;
    case 7:
      read_worker_env(script.all());
      break;
  }
  return 0;
}
