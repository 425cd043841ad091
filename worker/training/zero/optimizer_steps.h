// The steps of SGD, Adam and AdamW, in a form that the caller chooses. The public optimizers choose
// StepForm::kByDevice. One thread; the caller records no gradients.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "worker/training/zero/fused_steps.h"

namespace ddprun::worker {

// Steps each parameter that has a gradient.
void step_parameters(torch::optim::SGD& optimizer, StepForm form);
// Does the same. Throws std::invalid_argument for sparse gradients, and where amsgrad is turned on
// after a step.
void step_parameters(torch::optim::Adam& optimizer, StepForm form);
void step_parameters(torch::optim::AdamW& optimizer, StepForm form);

}  // namespace ddprun::worker
