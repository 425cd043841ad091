// Finds for each tensor of a module its tensor in a state_dict of any framework, by name. It takes
// the names as they are, or without the parts that wrappers have put into them. All names of both
// sides must fit, or nothing does. Pure; no LibTorch.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/value.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

using TensorsByName = std::map<std::string, const TensorValue*>;

// One name of a module's tensor. Tied weights have several names: these have one `tensor`, and one
// name in the file is enough for them.
struct WeightSlot {
  std::vector<std::int64_t> sizes;
  const void* tensor = nullptr;  // only compared
};
using WeightSlots = std::map<std::string, WeightSlot>;

struct NamedWeights {
  TensorsByName tensors;  // by the module's names
  PrefixChange change;
};

// The tensors of a state_dict. Errors: one of its values is no tensor.
Result<TensorsByName> tensors_of(const Value::Dict& state);

// Errors: kProtocol; names the first missing and unexpected keys, or the first tensor of another
// shape.
Result<NamedWeights> match_names(const TensorsByName& file, const WeightSlots& module,
                                 const LoadOptions& options);

// The starts of the file's names below which all that the module needs is, and nothing else. It is
// "model" for a LightningModule that has tensors of its own beside those of its attribute `model`.
std::vector<std::string> fitting_starts(const TensorsByName& file, const WeightSlots& module,
                                        const LoadOptions& options);
// The tensors whose names begin with `start` and a dot, without these.
TensorsByName below(const TensorsByName& file, const std::string& start);

}  // namespace ddprun::worker
