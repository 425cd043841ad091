// Finds a module's weights in a file of any framework. The file itself may be a state_dict, or one
// of its keys holds it. Weights are never guessed. If two fit, the plain one is taken and the
// others are named. Or the file is refused with the keys to choose from. Pure; no LibTorch.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/value.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/weight_names.h"

namespace ddprun::worker {

struct FoundWeights {
  std::string key;                  // "state_dict", "app.model"; empty: the file is one as a whole
  std::vector<std::string> others;  // keys of other weights that fit the module: "model_ema"
  NamedWeights named;
};

// Errors: kProtocol; they name the keys that are there, and the option that selects one.
Result<FoundWeights> find_weights(const Value& file, const WeightSlots& module,
                                  const LoadOptions& options);

}  // namespace ddprun::worker
