// For a LibTorch without CUDA: no ranks have GPUs.
#include "worker/training/graphs/step_graph.h"

namespace ddprun::worker {

std::unique_ptr<StepGraph> make_step_graph(Device /*device*/) { return nullptr; }

}  // namespace ddprun::worker
