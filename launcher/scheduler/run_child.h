// Asks what may never answer in a child of this process. It may be a resolver, a dead file server,
// or a driver. The child is killed when its time is over. Nothing of it is left in this process, no
// thread above all: the agent is forked later (agent/guardian/guardian.h). Main thread, at start.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace ddprun::launcher {

// Returns the answer of `question` in the child; it may start threads, and leave them there.
// Nothing if there is no answer at `end`, or it is empty. A child that does not even die is left
// behind.
std::optional<std::string> run_child(const std::function<std::string()>& question,
                                     std::chrono::steady_clock::time_point end);

}  // namespace ddprun::launcher
