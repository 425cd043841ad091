// Log lines of all our processes: launcher, guardian, agent, and training programs with the engine.
// Each line goes to stderr as `LMMDD HH:MM:SS.mmm pid ddprun] text`. L is the level's letter: D, I,
// W or E. Only log.cc includes spdlog, because its headers are slow to compile. Any thread may log.
#pragma once

#include <functional>
#include <string_view>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Drops lines below `level`. The default is kWarning, as torchrun's LOGLEVEL.
void set_level(Level level);

// Takes one whole line with its newline. It runs on the thread that logs, under the logger's lock.
using Writer = std::function<void(std::string_view line)>;

// Hands lines to `writer` instead of stderr. The agent needs this: the reader of our stderr may be
// slow. A write that blocks would stop the agent's loop. An empty writer means stderr again. The
// writer must not log: that would deadlock. It must not wait: all threads that log would wait too.
void set_writer(Writer writer);

// `text` is one line without its newline. No braces in it are a format. It passes shown_text().
void debug(std::string_view text);
void info(std::string_view text);
void warning(std::string_view text);
void error(std::string_view text);

}  // namespace ddprun::log
