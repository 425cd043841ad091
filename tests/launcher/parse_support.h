// Builders for tests of the command line: an environment and a host made of plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/options/options.h"

namespace ddprun::launcher {

using Variables = std::map<std::string, std::string>;

struct FakeHost {
  int cpus = 8;
  int gpus = 0;
  std::string called = "ddprun";
  Accelerators accelerators{};  // beside `gpus`, which are NVIDIA's
};

inline EnvLookup environment(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

inline ParseResult parse_line(const std::vector<std::string>& args, const Variables& variables = {},
                              const FakeHost& host = {}) {
  const auto accelerators = [host] {
    Accelerators all = host.accelerators;
    if (host.gpus > 0)
      all.insert(all.begin(), {AcceleratorKind::kNvidia, host.gpus, host.gpus, host.gpus});
    return all;
  };
  const HostFacts facts{[host] { return host.cpus; }, accelerators,
                        [] { return std::string("a-fresh-id"); }, host.called};
  return parse(args, environment(variables), facts);
}

// The Options of a line that must be good. A bad one throws, which fails the test with the
// variant's name.
inline Options good(const std::vector<std::string>& args, const Variables& variables = {},
                    const FakeHost& host = {}) {
  const ParseResult parsed = parse_line(args, variables, host);
  if (const auto* error = std::get_if<UsageError>(&parsed))
    throw std::runtime_error(error->message);
  return std::get<Options>(parsed);
}

// `2 ddprun: …` for a line that must be bad.
inline std::string bad(const std::vector<std::string>& args, const Variables& variables = {},
                       const FakeHost& host = {}) {
  const ParseResult parsed = parse_line(args, variables, host);
  const auto* error = std::get_if<UsageError>(&parsed);
  return error == nullptr ? "accepted"
                          : std::to_string(error->exit_code) + " ddprun: " + error->message;
}

}  // namespace ddprun::launcher
