// The state of LibTorch's SGD, Adam and AdamW as the state_dict of Python's optimizers, and back.
// It has momenta, counts of steps, and the options of each group of parameters. The training
// thread. Errors are one line.
#pragma once

#include <ddprun/value.h>

#include "base/result.h"

namespace torch::optim {
class Optimizer;
}

namespace ddprun::worker {

// Tensors share memory with the optimizer's: write the value before the next step. Errors:
// kInvalidArgument for another optimizer than SGD, Adam and AdamW.
Result<Value> optimizer_state(const torch::optim::Optimizer& optimizer);

// Replaces the optimizer's state and options. Parameters are known by their place, as in Python.
// Keys that LibTorch has no place for are ignored (initial_lr, foreach, …), but for those that
// would change a step. These are maximize, capturable with a tensor as learning rate, and
// decoupled_weight_decay of the other kind. Nothing is changed where the value does not fit.
Result<void> load_optimizer_state(const Value& state, torch::optim::Optimizer& optimizer);

}  // namespace ddprun::worker
