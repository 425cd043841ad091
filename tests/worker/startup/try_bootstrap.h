// bootstrap() with its error as a value.
#pragma once

#include <ddprun/process.h>

#include "base/result.h"

namespace ddprun::worker {

inline Result<Process> try_bootstrap(const BootstrapOptions& options = {}) {
  try {
    return bootstrap(options);
  } catch (const StartError& error) {
    return Error(ErrorCode::kSystem, error.what());
  }
}

}  // namespace ddprun::worker
