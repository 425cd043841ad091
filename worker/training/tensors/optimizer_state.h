// The state of an optimizer for ranks that come later (DataParallel::resize). It has momenta,
// counts of steps, and options like the learning rate. Owns nothing.
#pragma once

#include "worker/collective/core/collective.h"

namespace torch::optim {
class Optimizer;
}

namespace ddprun::worker {

// Gives rank `root`'s state to all ranks. All must call it, with optimizers of one kind over the
// same parameters, on the training thread. Errors are CollectiveError, or LibTorch's where the
// optimizers differ.
void share_optimizer_state(torch::optim::Optimizer& optimizer, Collective& collective,
                           int root = 0);

}  // namespace ddprun::worker
