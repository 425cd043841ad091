// Numbers by which a person makes a test run more, or other things.
#pragma once

#include <cstdlib>
#include <string>

namespace ddprun::support {

// Returns the number in an environment variable, or `otherwise` if it is not set. Throws for a text
// that begins with no number. Before any thread changes the environment.
template <typename Number>
Number number_of(const char* variable, Number otherwise) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? otherwise : static_cast<Number>(std::stoull(text));
}

}  // namespace ddprun::support
