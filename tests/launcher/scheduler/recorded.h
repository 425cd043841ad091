// Recorded environments of schedulers, and what the command line becomes in them.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "launcher/scheduler/scheduler_facts.h"
#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {

inline const std::string kFolder = DDPRUN_RECORDED;

inline std::optional<std::string> text_of(const std::string& name) {
  std::ifstream file(kFolder + "/" + name);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A recorded environment. Its first line names its source. `\n` in a value is a new line.
inline Variables recorded(const std::string& name) {
  std::istringstream lines(text_of(name + ".env").value());
  Variables variables;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::string value = line.substr(line.find('=') + 1);
    for (auto at = value.find("\\n"); at != std::string::npos; at = value.find("\\n"))
      value.replace(at, 2, "\n");
    variables[line.substr(0, line.find('='))] = value;
  }
  return variables;
}

// Returns the output of Flux's programs on two nodes.
inline std::optional<std::string> flux_answer(const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{"flux", "hostlist", "local"}) return "node[01-02]\n";
  return words.at(1) == "getattr" ? std::optional<std::string>("2\n") : std::nullopt;
}

inline SchedulerInputs facts(std::string host_name = "digits-3.digits.default.svc.cluster.local") {
  return {.read_file = text_of,
          .full_host_name = [host_name] { return host_name; },
          .ask = flux_answer};
}

inline std::vector<std::string> names_of(const Variables& variables) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return names;
}

inline SchedulerFacts detect(const Variables& variables, SchedulerInputs all = facts()) {
  all.variable_names = [&] { return names_of(variables); };
  return detect_scheduler(environment(variables), all);
}

// Returns the output of Slurm's programs.
inline std::optional<std::string> answer(const std::vector<std::string>& words) {
  if (words.at(0) == "scontrol")
    return "Configuration data\nKeepAliveTime           = SYSTEM_DEFAULT\nKillWait                "
           "= 60 sec\n";
  return "1 1795560000\n";
}

inline ParseResult parse_in(const std::string& name, const std::vector<std::string>& args,
                            const Variables& more = {}, SchedulerInputs inputs = facts()) {
  Variables variables = recorded(name);
  for (const auto& [key, value] : more) variables[key] = value;
  HostFacts host{[] { return 8; }, [] { return Accelerators{}; },
                 [] { return std::string("a-fresh-id"); }};
  host.allowed_cpu_count = [] { return 3; };
  host.scheduler_inputs = std::move(inputs);
  host.scheduler_inputs.variable_names = [&] { return names_of(variables); };
  host.ask = answer;
  return parse(args, environment(variables), host);
}

inline Options good_in(const std::string& name, const std::vector<std::string>& args,
                       const Variables& more = {}) {
  const ParseResult parsed = parse_in(name, args, more);
  if (const auto* error = std::get_if<UsageError>(&parsed))
    throw std::runtime_error(error->message);
  return std::get<Options>(parsed);
}

inline std::string bad_in(const std::string& name, const std::vector<std::string>& args,
                          const Variables& more = {}) {
  const ParseResult parsed = parse_in(name, args, more);
  const auto* error = std::get_if<UsageError>(&parsed);
  return error == nullptr ? "accepted" : fmt::format("{} {}", error->exit_code, error->message);
}

}  // namespace ddprun::launcher
