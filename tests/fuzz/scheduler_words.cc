// The output of schedulers: host lists, variables and node files, and the output of scontrol and
// squeue. Any text is read within its bounds. Lists that are put together have the names that they
// were put together from.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "launcher/scheduler/deadlines.h"
#include "launcher/scheduler/placement.h"
#include "launcher/scheduler/scheduler_facts.h"
#include "proto/host_list.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::launcher {
namespace {

using fuzz::ScriptInput;
using Names = std::vector<std::string>;

void read_list(std::string_view text) {
  const auto hosts = parse_host_list(text);
  if (!hosts) {
    DDPRUN_ASSERT(!hosts.error().message().empty());
    return;
  }
  DDPRUN_ASSERT(hosts->size() <= kMaxHosts);
  std::string plain;
  for (const std::string& host : *hosts) {
    DDPRUN_ASSERT(!host.empty() && host.size() <= kMaxHostNameBytes);
    DDPRUN_ASSERT(host.find_first_of("[], \t\n") == std::string::npos);
    plain += host + ',';
  }
  // Names without brackets stand for themselves.
  const auto again = parse_host_list(plain);
  DDPRUN_ASSERT(again.has_value() && *again == *hosts);
}

std::string letters(ScriptInput& script) {
  std::string text;
  for (std::size_t count = script.choice(5); count > 0; --count)
    text += static_cast<char>('a' + script.choice(26));
  return text;
}

// A bracket of a few ranges, and its numbers as they are written.
Names add_bracket(ScriptInput& script, std::string& list) {
  Names numbers;
  list += '[';
  for (std::size_t count = 1 + script.choice(3); count > 0; --count) {
    const unsigned low = static_cast<unsigned>(script.byte()) * (script.flag() ? 1 : 39);
    const unsigned more = static_cast<unsigned>(script.choice(6));
    const std::string first = fmt::format("{:0{}}", low, 1 + script.choice(6));
    for (unsigned number = low; number <= low + more; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
    list += more > 0 ? fmt::format("{}-{}", first, low + more) : first;
    if (count > 1) list += ',';
  }
  list += ']';
  return numbers;
}

// Up to two brackets an entry: the last one runs fastest.
void write_list(ScriptInput script) {
  std::string list;
  Names wanted;
  for (std::size_t entries = 1 + script.choice(4); entries > 0; --entries) {
    Names names = {"n" + letters(script)};
    list += names.front();
    for (std::size_t brackets = script.choice(3); brackets > 0; --brackets) {
      const Names numbers = add_bracket(script, list);
      const std::string between = brackets > 1 ? letters(script) : std::string();
      list += between;
      Names longer;
      for (const std::string& name : names)
        for (const std::string& number : numbers) longer.push_back(name + number + between);
      names = longer;
    }
    wanted.insert(wanted.end(), names.begin(), names.end());
    list += script.flag() ? "," : " ";
  }
  const auto hosts = parse_host_list(list);
  DDPRUN_ASSERT(hosts.has_value() && *hosts == wanted);
}

struct Machine {
  std::map<std::string, std::string, std::less<>> variables;
  std::string file;
};

// A NAME=VALUE a line, an empty line, then what every file holds. A zero byte ends a value.
Machine split(std::string_view text) {
  Machine machine;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string line(std::string(text.substr(0, end)).c_str());
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) {
      machine.file = text;
      break;
    }
    const auto equals = line.find('=');
    if (equals != std::string::npos)
      machine.variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return machine;
}

void check(const SchedulerFacts& found) {
  DDPRUN_ASSERT(found.nodes >= 0 && found.most_tasks >= 0 && found.node_rank >= 0);
  DDPRUN_ASSERT(found.cpus_per_task >= 0 && found.job_nodes >= 0);
  if (found.scheduler == Scheduler::kNone || !found.problem.empty()) return;
  if (found.is_step && found.nodes > 0) DDPRUN_ASSERT(found.node_rank < found.nodes);
  if (found.id.empty()) return;
  DDPRUN_ASSERT(found.id.size() <= 128 && found.id.find('/') == std::string::npos);
  DDPRUN_ASSERT(kFirstJobPort <= found.first_port);
  DDPRUN_ASSERT(found.first_port + kJobPorts <= kEndOfJobPorts);
}

// No way leads to a world that is smaller than asked.
void check(const SchedulerFacts& found, const PlacementQuery& asked) {
  const auto placed = place(found, asked);
  if (!placed) {
    DDPRUN_ASSERT(!placed.error().message().empty());
    return;
  }
  if (!*placed) {
    DDPRUN_ASSERT(asked.by_flags || asked.max_nodes != 0 || found.nodes <= 1 ||
                  found.scheduler == Scheduler::kIndexedJob);
    DDPRUN_ASSERT(!found.by_operator || asked.max_nodes == 1);
    return;
  }
  const Placement& placement = **placed;
  DDPRUN_ASSERT(placement.nodes >= 1 && !placement.host.empty() && !placement.id.empty());
  DDPRUN_ASSERT(0 <= placement.node_rank && placement.node_rank < placement.nodes);
  DDPRUN_ASSERT(placement.first_port != 0 && !placement.notice.empty());
  if (asked.max_nodes != 0)
    DDPRUN_ASSERT(asked.min_nodes <= placement.nodes && placement.nodes <= asked.max_nodes);
}

void read_variables(ScriptInput script) {
  PlacementQuery asked{.by_flags = false, .called = "ddprun"};
  asked.max_nodes = static_cast<int>(script.choice(5));
  asked.min_nodes = std::min(asked.max_nodes, 1 + static_cast<int>(script.choice(3)));
  asked.nodes_shown = fmt::format("--nnodes={}:{}", asked.min_nodes, asked.max_nodes);
  const Machine machine = split(script.all());
  const EnvLookup env = [&](std::string_view name) -> std::optional<std::string> {
    const auto known = machine.variables.find(name);
    return known == machine.variables.end() ? std::nullopt : std::optional(known->second);
  };
  const SchedulerInputs facts{
      .read_file = [&](const std::string&) { return std::optional(machine.file); },
      .full_host_name = [&] { return machine.file.substr(0, machine.file.find('\n')); },
      .ask = [&](const Names&) { return std::optional(machine.file); },
      .variable_names =
          [&] {
            Names names;
            for (const auto& [name, value] : machine.variables) names.push_back(name);
            return names;
          }};
  const SchedulerFacts found = detect_scheduler(env, facts);
  check(found);
  check(found, asked);
}

void read_deadlines(std::string_view text) {
  SchedulerFacts slurm{.scheduler = Scheduler::kSlurmStep, .slurm_job = "1"};
  const Ask ask = [&](const std::vector<std::string>& words) {
    DDPRUN_ASSERT(!words.empty());
    return std::optional(std::string(text));
  };
  if (const auto grace = grace_under(slurm, ask)) {
    // In nanoseconds it is added to a time.
    DDPRUN_ASSERT(grace->count() >= 0 && *grace <= std::chrono::hours(24 * 365 * 100));
  }
  if (const auto end = end_of_job(slurm, ask)) DDPRUN_ASSERT(end->time_since_epoch().count() > 0);
}

}  // namespace
}  // namespace ddprun::launcher

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::launcher;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(4)) {
    case 0:
      read_list(script.all());
      break;
    case 1:
      write_list(script);
      break;
    case 2:
      read_variables(script);
      break;
    case 3:
      read_deadlines(script.all());
      break;
  }
  return 0;
}
