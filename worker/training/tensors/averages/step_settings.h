// The settings of steps, beside weights and gradients: the options of the optimizers and their
// counts of steps. Ranks with unlike ones part, however little these differ. GradientReducer owns
// it and calls it from the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
class OptimizerParamState;
}  // namespace torch::optim

namespace ddprun::worker {

// A number of an optimizer, for a message.
struct StepSetting {
  const char* name;   // "lr"
  std::size_t group;  // of the optimizer's parameters
  double value;
};

class StepSettings {
 public:
  // The optimizer is about to step. Knows the optimizers of LibTorch, and those derived from them.
  void add(const torch::optim::Optimizer& optimizer);
  // All ranks have compared them.
  void clear();

  // A hash of all options that were added, and of their order; and of all parameters' counts.
  std::uint64_t options() const { return options_; }
  std::uint64_t counts() const { return counts_; }
  // The first options, at most kNamedMax. A group shows the greatest one of its counts.
  const std::vector<StepSetting>& named() const { return named_; }

  static constexpr std::size_t kNamedMax = 4096;

 private:
  void add(const StepSetting& setting);
  void add_counts(const torch::optim::Optimizer& optimizer,
                  const torch::optim::OptimizerParamGroup& group, std::size_t number,
                  std::int64_t (*steps)(const torch::optim::OptimizerParamState&));

  std::uint64_t options_ = kHashStart;
  std::uint64_t counts_ = kHashStart;
  std::vector<StepSetting> named_;
  std::vector<StepSetting> read_;  // of one group
};

// Returns a number for the way in which this process rounds functions such as cos(), which a
// schedule may use. Ranks that have the same number here round alike.
double rounding_kind();

// Says how two ranks' settings differ, by names of the first. Nothing if they do not. Ranks of
// unlike `rounding_kind()` may differ by a little. Pure.
std::optional<std::string> unlike_settings(std::span<const StepSetting> first,
                                           std::span<const double> other, bool round_alike);

}  // namespace ddprun::worker
