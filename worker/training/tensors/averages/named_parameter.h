// A parameter of a module, by its dotted path.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ddprun::worker {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

}  // namespace ddprun::worker
