#include "rendezvous/core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/assert.h"
#include "base/signal_name.h"

namespace ddprun::rendezvous {
namespace {

bool is_letter(char letter) { return std::isalnum(static_cast<unsigned char>(letter)) != 0; }
bool is_capital(char letter) { return std::isupper(static_cast<unsigned char>(letter)) != 0; }

// The things that all attempts have alike.
struct Common {
  bool rank = true;
  bool host = true;
  bool exception = true;
  bool exit_code = true;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

Common common_of(const std::vector<FailedAttempt>& attempts) {
  const Failure& first = attempts.front().cause;
  Common common{.exception = !exception_of(first.words).empty(),
                .first_step = first.step.value_or(0),
                .last_step = first.step.value_or(0)};
  for (const FailedAttempt& attempt : attempts) {
    const Failure& cause = attempt.cause;
    common.rank = common.rank && cause.rank == first.rank;
    common.host = common.host && cause.hostname == first.hostname;
    common.exit_code = common.exit_code && cause.exit_code == first.exit_code;
    common.exception = common.exception && exception_of(cause.words) == exception_of(first.words);
    common.first_step = std::min(common.first_step, cause.step.value_or(0));
    common.last_step = std::max(common.last_step, cause.step.value_or(0));
  }
  return common;
}

std::string when(const Common& common) {
  if (common.last_step == 0) return "before a step";
  if (common.first_step == common.last_step) return fmt::format("after step {}", common.last_step);
  return fmt::format("after steps {} to {}", common.first_step, common.last_step);
}

std::string how(const Common& common, const Failure& first) {
  if (common.exception) return fmt::format("with the same {}", exception_of(first.words));
  if (!common.exit_code) return "each in its own way";
  if (first.rank < 0) return "without a worker's failure";
  if (first.exit_code >= 0) return fmt::format("with exit code {}", first.exit_code);
  return fmt::format("by {}", signal_name(-first.exit_code));
}

std::string who(const Common& common, const Failure& first, int nodes) {
  const bool has_rank = common.rank && first.rank >= 0;
  if (nodes == 1) return has_rank ? fmt::format("rank {}", first.rank) : "several ranks";
  const std::string rank = has_rank ? fmt::format("rank {}", first.rank) : "ranks";
  return common.host ? fmt::format("{} on {}", rank, first.hostname)
                     : fmt::format("{} on several nodes", rank);
}

// The words of CUDA, HIP and NCCL for a device that does not do its work.
bool is_of_a_device(const Failure& cause) {
  constexpr std::string_view kDevice[] = {"CUDA error",   "HIP error",         "CUDNN_STATUS",
                                          "ECC error",    "AcceleratorError",  "ncclUnhandledCuda",
                                          "NVML_SUCCESS", "device-side assert"};
  return std::ranges::any_of(
      kDevice, [&](std::string_view word) { return cause.words.find(word) != std::string::npos; });
}

bool lacks_a_package(const Failure& cause) {
  const std::string_view name = exception_of(cause.words);
  return name == "ModuleNotFoundError" || name == "ImportError";
}

// The failures were all on this node, and the job had others.
std::string blame_node(const Common& common, const Failure& first) {
  const std::string& node = first.hostname;
  if (common.exception && lacks_a_package(first))
    return fmt::format("{} lacks what the others have", node);
  if (first.rank < 0) return fmt::format("look at {} first", node);
  if (!common.exception) return fmt::format("{} is all that they share: look at it first", node);
  if (!common.rank) return fmt::format("the data of these ranks, or {}", node);
  return fmt::format("the data of rank {}, or {}", first.rank, node);
}

// A cause that is a machine's can only be named where there is another one to compare with.
std::string blame(const Common& common, const Failure& first, int nodes) {
  const bool is_one_rank = common.exception && common.rank && first.rank >= 0;
  if (is_one_rank && is_of_a_device(first))
    return fmt::format("the device of local rank {} on {}, or the program", first.local_rank,
                       first.hostname);
  if (common.host && nodes > 1) return blame_node(common, first);
  const bool is_one_place = common.exit_code && common.first_step == common.last_step;
  if (!common.exception && !is_one_place) return "they share nothing: look at each of them";
  return nodes > 1 ? "the data or the program, not a machine" : "the data or the program";
}

}  // namespace

std::string_view exception_of(std::string_view line) {
  std::string_view name = line.substr(0, line.find(':'));
  const auto is_of_a_name = [](char letter) {
    return is_letter(letter) || letter == '_' || letter == '.';
  };
  if (name.empty() || !std::ranges::all_of(name, is_of_a_name)) return {};
  if (const auto dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  return !name.empty() && is_capital(name.front()) ? name : std::string_view();
}

std::string common_sentence(const std::vector<FailedAttempt>& attempts, bool is_all, int nodes) {
  DDPRUN_ASSERT(!attempts.empty());
  const Failure& first = attempts.front().cause;
  const Common common = common_of(attempts);
  return fmt::format("{} {} attempts failed {}, {}, {}: {}", is_all ? "all" : "the last",
                     attempts.size(), when(common), how(common, first), who(common, first, nodes),
                     blame(common, first, nodes));
}

bool ProgressWatch::has_moved(const Failure& cause) const {
  return cause.is_step_of_run ? *cause.step > best_ : *cause.step > 0;
}

void ProgressWatch::attempt_failed(std::int64_t round, int nodes, const Failure& cause) {
  ++failed_;
  if (!cause.step || has_moved(cause)) {
    row_.clear();
    in_a_row_ = 0;
    nodes_ = 1;
    if (cause.step && cause.is_step_of_run) best_ = *cause.step;
    return;
  }
  ++in_a_row_;
  nodes_ = std::max(nodes_, nodes);
  row_.push_back({round, cause});
  if (row_.size() > kMostShownAttempts) row_.erase(row_.begin());
}

std::optional<NoProgress> ProgressWatch::stuck(int most) const {
  if (most <= 0 || in_a_row_ < most) return std::nullopt;
  const bool is_all = failed_ == static_cast<int>(row_.size());
  return NoProgress{
      .attempts = in_a_row_, .sentence = common_sentence(row_, is_all, nodes_), .last = row_};
}

}  // namespace ddprun::rendezvous
