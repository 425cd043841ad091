// This process's environment: a look-up that pure code is handed, and the end of a secret in it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// Answers the value of an environment variable; nothing if the variable is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

// Looks variables up in this process's environment, as it is at each call. Any thread, as long as
// nobody changes the environment.
EnvLookup process_environment();

// Takes the variable out of this process's environment. Also takes it out of /proc/<pid>/environ,
// its own and its forks' (proc(5)). The bytes that execve() left there are overwritten. Main
// thread, at start.
void wipe_variable(const char* name);

}  // namespace ddprun
