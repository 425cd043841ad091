// Log lines of the launcher, the agent and the daemons: one line each, on stderr, `L MMDD
// HH:MM:SS.mmm pid] text` with the level's letter in front. A thin face over spdlog so that only
// log.cc pays for its headers. Any thread may log.
#pragma once

#include <functional>
#include <string_view>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. Default: kWarning, as torchrun's LOGLEVEL.
void set_level(Level level);

// Takes a whole line, with its newline; on the thread that logs.
using Writer = std::function<void(std::string_view line)>;

// Hands lines to `writer` instead of stderr, whose reader may be slow and would stop us; none:
// stderr again. The writer must not log, and must not wait.
void set_writer(Writer writer);

void debug(std::string_view text);
void info(std::string_view text);
void warning(std::string_view text);
void error(std::string_view text);

}  // namespace ddprun::log
