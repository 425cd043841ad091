// The findings of the doctor: one line for each thing that was looked at. No logic but its two
// forms. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

enum class Level { kOk, kWarning, kFailure };

struct Finding {
  Level level = Level::kOk;
  std::string what;      // a word or two: "shared memory"
  std::string fact;      // what was seen
  std::string remedy{};  // what to type; empty if nothing is wrong

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

bool has_failure(const Findings& findings);

// `FAIL what: fact — remedy` for each, with a line end. `host`, where several nodes share a
// console, comes in front: `node01: FAIL …`.
std::string text_of(const Findings& findings, std::string_view host = {});

// One JSON object on one line: the host, the checks, and whether one failed.
std::string json_of(std::string_view host, const Findings& findings);

}  // namespace ddprun::launcher
