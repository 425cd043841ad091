#include "worker/training/pipeline/pipeline_terms.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string_view>

namespace ddprun::worker {
namespace {

// An option as a text, by its name.
struct NamedTerm {
  std::string_view name;
  std::string value;
};

std::string_view name_of(PipelineOrder order) {
  return order == PipelineOrder::kGPipe ? "gpipe" : "1f1b";
}

std::array<NamedTerm, 3> named(const PipelineTerms& terms) {
  return {{{"micro_batches", fmt::format("{}", terms.micro_batches)},
           {"schedule", std::string(name_of(terms.order))},
           {"mean_loss", fmt::format("{}", terms.mean_loss)}}};
}

}  // namespace

std::optional<std::string> why_unequal(std::span<const PipelineTerms> by_rank) {
  const auto first = named(by_rank.front());
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].micro_batches < 1)
      return fmt::format("Pipeline: micro_batches {} given on rank {}, expected 1 or more",
                         by_rank[rank].micro_batches, rank);
    const auto mine = named(by_rank[rank]);
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (mine[i].value == first[i].value) continue;
      return fmt::format("Pipeline: {} {} given on rank {}, expected {} as on rank 0",
                         first[i].name, mine[i].value, rank, first[i].value);
    }
  }
  return std::nullopt;
}

std::int64_t rows_of_micro_batch(std::int64_t rows, std::int64_t micro_batches, const char* what) {
  if (rows > 0 && rows % micro_batches == 0) return rows / micro_batches;
  throw std::invalid_argument(
      fmt::format("Pipeline: {} of {} rows given, expected a multiple of the {} micro-batches",
                  what, rows, micro_batches));
}

}  // namespace ddprun::worker
