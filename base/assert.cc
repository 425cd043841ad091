#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace ddprun {

void assertion_failed(const char* condition, const char* file, int line) {
  // Directly to stderr and not through log.h: lines there may wait in a writer, and abort() would
  // lose them. stderr has no buffer, so this line is out before the abort.
  std::fprintf(stderr, "ddprun: %s:%d: this must hold and does not: %s\n", file, line, condition);
  std::abort();
}

void unreachable_reached(const char* what, const char* file, int line) {
  std::fprintf(stderr, "ddprun: %s:%d: no way leads here: %s\n", file, line, what);
  std::abort();
}

}  // namespace ddprun
