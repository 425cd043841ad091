#include "worker/training/data_parallel/pass_messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddprun::worker {
namespace {

// A message names so many parameters, then says how many more there are. Models have thousands.
constexpr std::size_t kNamedInMessageMax = 10;

std::string describe(const PassName& pass, const std::vector<std::size_t>& parameters) {
  std::string text;
  const std::size_t named = std::min(parameters.size(), kNamedInMessageMax);
  for (std::size_t i = 0; i < named; ++i) {
    text += fmt::format("{}{} ('{}')", i == 0 ? "" : ", ", parameters[i],
                        pass.parameters[parameters[i]].name);
  }
  if (named < parameters.size()) text += fmt::format(" and {} more", parameters.size() - named);
  return text;
}

// It begins with PyTorch's words.
std::string not_finished(const PassName& pass) {
  return fmt::format(
      "Expected to have finished reduction in the prior iteration before starting a new one. On "
      "rank {}, backward() of pass {} ",
      pass.rank, pass.number);
}

}  // namespace

std::string second_backward(const PassName& pass) {
  return fmt::format(
      "backward() ran again after pass {} was summed, without a forward() of DataParallel before "
      "it. Its gradients are added on this rank only: rank {} parts from the others.",
      pass.number, pass.rank);
}

std::string second_gradient(const PassName& pass, std::size_t parameter) {
  return fmt::format(
      "Expected to mark a variable ready only once. Parameter {} got a second gradient in pass "
      "{} on rank {}. Causes: 1) it is used outside of forward(); 2) it is used in several "
      "reentrant backward passes, as with activation checkpointing: static_graph allows that; 3) "
      "forward() ran twice before backward() over the same graph.",
      describe(pass, {parameter}), pass.number, pass.rank);
}

std::string graph_has_changed(const PassName& pass, std::size_t parameter) {
  return fmt::format(
      "Your training graph has changed in this iteration, which static_graph does not allow: "
      "parameter {} got more gradients in pass {} on rank {} than in the first pass. Leave "
      "static_graph out, or make every pass alike.",
      describe(pass, {parameter}), pass.number, pass.rank);
}

// Buckets get their averages in order, so number `done` is the first that has none.
std::string ended_with_error(const PassName& pass, const BucketPlan& plan, std::size_t done) {
  std::string not_reduced;
  if (done < plan.size()) {
    not_reduced =
        fmt::format("{} of {} buckets were not reduced, the first of them with parameters {}; ",
                    plan.size() - done, plan.size(), describe(pass, plan[done]));
  }
  return not_finished(pass) + "ended with an error: " + not_reduced +
         "call reset() on all ranks to give the pass up, or start the job anew from a checkpoint.";
}

std::string ended_early(const PassName& pass, const std::vector<std::size_t>& missing) {
  if (missing.empty()) return not_finished(pass) + "ended before its sums were complete.";
  return not_finished(pass) +
         fmt::format(
             "gave no gradient to {} of {} parameters: {}. Every parameter that needs a gradient "
             "must take part in the loss: use all outputs of forward(), set "
             "find_unused_parameters, or freeze what is not trained with requires_grad_(false). "
             "If backward() threw, call reset() on all ranks.",
             missing.size(), pass.parameters.size(), describe(pass, missing));
}

std::optional<std::string> parted_in_reset(std::span<const Progress> ranks, int rank) {
  const Progress& mine = ranks[static_cast<std::size_t>(rank)];
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const Progress& theirs = ranks[other];
    if (mine.parameters_stepped != 0 || theirs.parameters_stepped != 0) {
      return fmt::format(
          "reset: step_in_backward() has stepped {} parameters of the pass on rank {}, and {} on "
          "rank {}: the pass cannot be given up any more, so the job must start anew from a "
          "checkpoint",
          mine.parameters_stepped, rank, theirs.parameters_stepped, other);
    }
    if (theirs == mine) continue;
    return fmt::format(
        "reset: rank {} has summed {} passes and made {} steps, rank {} has summed {} and "
        "made {}: the weights have parted, so the job must start anew from a checkpoint",
        rank, mine.passes_summed, mine.steps, other, theirs.passes_summed, theirs.steps);
  }
  return std::nullopt;
}

}  // namespace ddprun::worker
