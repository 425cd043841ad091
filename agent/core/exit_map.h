// --exit-map: the exit codes that a scheduler wants to see, by the reason for which a job ended
// (docs/exit_codes.md). Pure; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

struct Ending;

// The reasons that have a word of their own, besides exceptions, signals and workers' exit codes.
inline constexpr std::string_view kExitWords[] = {
    "preempted", "no-progress", "rendezvous", "launcher", "node", "hang", "no-restart", "failed"};

// Exit codes by reason: a word of kExitWords, the name of a Python exception, `signal:SIGKILL` or
// `exit:3`.
using ExitMap = std::map<std::string, int, std::less<>>;

// `KEY:CODE,…`, or a line for each with spaces and comments (#). A code is from 0 to 255. Errors
// are one clause that names the entry and what is accepted.
Result<ExitMap> parse_exit_map(std::string_view text);

// Returns the reasons for which the job ended, the closest one first. None if it succeeded, or an
// operator drained the node.
std::vector<std::string> exit_reasons(const Ending& ending, int max_restarts);

// Returns the code of the closest reason that the map has.
std::optional<int> mapped_code(const ExitMap& map, const Ending& ending, int max_restarts);

}  // namespace ddprun::agent
