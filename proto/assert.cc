#include "proto/assert.h"

#include <cstdio>
#include <cstdlib>

namespace ddprun {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "ddprun: %s:%d: this must hold and does not: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ddprun
