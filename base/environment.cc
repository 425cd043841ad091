#include "base/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace ddprun {

EnvLookup process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): only wipe_variable() writes it, at start
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

void wipe_variable(const char* name) {
  const std::string start = std::string(name) + "=";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with(start)) continue;
    char* const value = *entry + start.size();
    ::explicit_bzero(value, std::strlen(value));
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): at start there is one thread
  ::unsetenv(name);
}

}  // namespace ddprun
