// The screen for a job that ends because its attempts get nowhere (rendezvous/core/progress.h). It
// shows the causes of the last attempts side by side. Pure text; any thread.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// Returns the line of the last traceback that names the exception, without a `[rank0]: ` before it.
// Python ignores some exceptions, such as those of a `__del__`, and theirs do not count. If there
// is no such line, the last line that says something, in quotes: exception_of() finds no name in
// it. `lines`: the end of stderr, oldest first.
std::string last_words(const std::vector<std::string>& lines);

// Returns the lines, each with its end: a sentence, a heading, a line for each attempt.
// `called`: ddprun's name.
std::string no_progress_text(const rendezvous::NoProgress& why, const std::string& called);

}  // namespace ddprun::agent
