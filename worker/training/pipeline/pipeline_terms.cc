#include "worker/training/pipeline/pipeline_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace ddprun::worker {
namespace {

constexpr std::int64_t kTermsMark = 0x5049'5045'1001;  // "PIPE", terms in their first form

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

PipelineWords words_of(const PipelineTerms& terms) {
  return {kTermsMark,
          terms.micro_batches,
          static_cast<std::int64_t>(terms.order),
          terms.mean_loss ? 1 : 0,
          terms.has_loss ? 1 : 0,
          terms.runs_ahead ? 1 : 0};
}

std::optional<PipelineTerms> terms_of(const PipelineWords& words) {
  const auto is_bit = [](std::int64_t word) { return word == 0 || word == 1; };
  // The schedules are the first two orders.
  if (words[0] != kTermsMark || !std::all_of(words.begin() + 2, words.end(), is_bit))
    return std::nullopt;
  return PipelineTerms{.micro_batches = words[1],
                       .order = static_cast<PipelineOrder>(words[2]),
                       .mean_loss = words[3] == 1,
                       .has_loss = words[4] == 1,
                       .runs_ahead = words[5] == 1};
}

std::optional<std::string> why_unequal(std::span<const PipelineTerms> by_rank) {
  const auto first = named(by_rank.front());
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].micro_batches < 1)
      return fmt::format("Pipeline: micro_batches {} given on rank {}, expected 1 or more",
                         by_rank[rank].micro_batches, rank);
    if (!by_rank[rank].runs_ahead)
      return fmt::format(
          "Pipeline: a DataParallel with find_unused_parameters, static_graph or "
          "step_in_backward() given on rank {}, expected one without them",
          rank);
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
