// The terms that all stages of a pipeline must agree on before they begin. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "worker/training/pipeline/pipeline_plan.h"

namespace ddprun::worker {

struct PipelineTerms {
  std::int64_t micro_batches = 0;
  PipelineOrder order = PipelineOrder::kGPipe;
  bool mean_loss = true;
  bool has_loss = false;   // of the last rank counts alone
  bool runs_ahead = true;  // forwards may run ahead of their backwards
};

// The terms as they travel: a mark, and the fields in their order.
using PipelineWords = std::array<std::int64_t, 6>;

PipelineWords words_of(const PipelineTerms& terms);
// Returns nothing for words that words_of() does not make.
std::optional<PipelineTerms> terms_of(const PipelineWords& words);

// Says in one line why ranks with these terms cannot train together; the same on all of them.
// Nothing: they can.
std::optional<std::string> why_unequal(std::span<const PipelineTerms> by_rank);

// Returns the rows of a micro-batch. Throws std::invalid_argument, which names the tensor `what`,
// where `rows` is no multiple, or 0.
std::int64_t rows_of_micro_batch(std::int64_t rows, std::int64_t micro_batches, const char* what);

}  // namespace ddprun::worker
