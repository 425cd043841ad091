// The order in which a stage of a pipeline does its work on the micro-batches of a batch. Pure.
// Sends and receives may block until the other stage has come. Neighbours then meet in the same
// order: a stage takes its next activation before it gives a gradient back.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::worker {

// The schedules of PipelineOptions, and forwards alone.
enum class PipelineOrder : std::uint8_t { kGPipe, kOneForwardOneBackward, kForwardOnly };

struct PipelineAction {
  enum class Kind : std::uint8_t {
    kReceiveInput,     // from the stage before
    kForward,          // its activations live from here on
    kSendOutput,       // to the stage behind
    kReceiveGradient,  // of the output, from the stage behind
    kBackward,         // its activations live until here
    kSendGradient,     // of the input, to the stage before
  };
  Kind kind = Kind::kForward;
  int micro_batch = 0;  // 0 … micro_batches-1

  bool operator==(const PipelineAction&) const = default;
};

// Returns the actions of stage `stage` (0 … stages-1). A stage is first in warm-up, with forwards
// alone. 1F1B has min(micro_batches, stages - stage) of them, GPipe all. Then a backward and a
// forward take turns. At last come the backwards that are left. `stages` and `micro_batches` are 1
// or more.
std::vector<PipelineAction> plan_pipeline(PipelineOrder order, int stage, int stages,
                                          int micro_batches);

}  // namespace ddprun::worker
