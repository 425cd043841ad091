// The whole command line and the variables that stand for flags. The input is text: a word a line,
// an empty line, then a NAME=VALUE a line. A bad line is one clear error. A good one is a valid
// job, which is then planned as far as that starts nothing.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "launcher/job/command.h"
#include "launcher/job/plan.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {
namespace {

struct Line {
  std::vector<std::string> args;
  std::map<std::string, std::string, std::less<>> variables;
};

// A zero byte ends a word, as it does for the kernel.
Line split(std::string_view text) {
  Line line;
  bool is_argument = true;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string word(std::string(text.substr(0, end)).c_str());
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const auto equals = word.find('=');
    if (is_argument && word.empty()) {
      is_argument = false;
    } else if (is_argument) {
      line.args.push_back(word);
    } else if (equals != std::string::npos) {
      line.variables[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return line;
}

bool is_one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos;
}

void check_options(const Options& options) {
  DDPRUN_ASSERT(1 <= options.nodes.min && options.nodes.min <= options.nodes.max);
  DDPRUN_ASSERT(options.nodes.max <= kMaxNodes && options.node_unit >= 1);
  DDPRUN_ASSERT(options.nodes.min % options.node_unit == 0);
  DDPRUN_ASSERT(options.nodes.max % options.node_unit == 0);
  DDPRUN_ASSERT(1 <= options.workers_per_node && options.workers_per_node <= kMaxWorkersPerNode);
  DDPRUN_ASSERT(options.restarts.max_restarts >= 0 && options.shutdown_timeout.count() >= 0);
  DDPRUN_ASSERT(!options.script.empty() && !options.run_id.empty());
  for (const std::string& warning : options.warnings) DDPRUN_ASSERT(is_one_line(warning));
  const RendezvousConf& conf = options.rendezvous_conf;
  DDPRUN_ASSERT(conf.settings.join_timeout.count() > 0 && conf.settings.last_call.count() > 0);
  DDPRUN_ASSERT(conf.read_timeout.count() > 0 && conf.keep_alive_interval.count() > 0);
  switch (options.rendezvous) {
    case Rendezvous::kLocal:
      DDPRUN_ASSERT(options.nodes.max == 1);
      break;
    case Rendezvous::kStatic:
      DDPRUN_ASSERT(options.nodes.min == options.nodes.max && options.endpoint.port.has_value());
      DDPRUN_ASSERT(0 <= options.node_rank && options.node_rank < options.nodes.max);
      break;
    case Rendezvous::kC10d:
      DDPRUN_ASSERT(options.endpoint.port.has_value() && !options.endpoint.host.empty());
      break;
    case Rendezvous::kEtcd:
      DDPRUN_ASSERT(!conf.etcd.members.empty() && conf.etcd.members.size() <= kMaxEtcdMembers);
      for (const auto& member : conf.etcd.members) DDPRUN_ASSERT(member.port != 0);
      break;
  }
}

// The last letter decides what lies there.
FileFacts lying_at(const std::string& path) {
  const unsigned kind = path.empty() ? 0 : static_cast<unsigned char>(path.back());
  return {.kind = static_cast<FileKind>(kind % 6), .executable = kind % 7 != 0};
}

// Slurm's programs. KILL_WAIT and JOB_END are what they say after the name and the job's number.
std::optional<std::string> answer_of(const std::vector<std::string>& words, const EnvLookup& env) {
  const bool is_config = words.front() == "scontrol";
  const auto told = env(is_config ? "KILL_WAIT" : "JOB_END");
  if (!told) return std::nullopt;
  if (is_config) return "\nKillWait " + *told + "\n";
  return env("SLURM_JOB_ID").value_or("") + ' ' + *told + '\n';
}

void plan(const Options& options) {
  const CommandFacts facts{
      .inspect = lying_at,
      .find_on_path = [](const std::string& name) { return std::optional("/usr/bin/" + name); },
      .python_exec = {},
      .python_beside_us = [] { return std::optional<PythonPlace>(); }};
  const auto command = build_command(options, facts);
  if (!command) {
    DDPRUN_ASSERT(is_one_line(command.error().message()));
    return;
  }
  DDPRUN_ASSERT(command->program().find('/') != std::string::npos);
  DDPRUN_ASSERT(command->argv(0).size() >= options.script_args.size());
  const Plan made = make_plan(options, *command, {.variables = {"PATH=/bin"}, .token = "secret"});
  for (const std::string& notice : made.notices) {
    DDPRUN_ASSERT(is_one_line(notice) && notice.find("secret") == std::string::npos);
  }
}

}  // namespace
}  // namespace ddprun::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::launcher;
  const Line line = split({reinterpret_cast<const char*>(data), size});
  const ddprun::EnvLookup env = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = line.variables.find(name);
    return found == line.variables.end() ? std::nullopt : std::optional(found->second);
  };
  const HostFacts host{
      .cpu_count = [] { return 8; },
      .accelerators =
          [] {
            return Accelerators{{AcceleratorKind::kNvidia, 2, 2, 2}};
          },
      .make_run_id = [] { return std::string("an-id"); },
      .called =
          line.variables.contains("LAUNCH") ? std::string(kLaunchName) : std::string(kProgramName),
      .allowed_cpu_count = [] { return 4; },
      .ask = [&](const std::vector<std::string>& words) { return answer_of(words, env); }};
  const ParseResult parsed = parse(line.args, env, host);
  if (const auto* error = std::get_if<UsageError>(&parsed)) {
    DDPRUN_ASSERT(error->exit_code == 1 || error->exit_code == 2);
    DDPRUN_ASSERT(is_one_line(error->message));
  } else if (const auto* answer = std::get_if<Answer>(&parsed)) {
    DDPRUN_ASSERT(answer->text.ends_with('\n'));
  } else {
    check_options(std::get<Options>(parsed));
    plan(std::get<Options>(parsed));
  }
  return 0;
}
