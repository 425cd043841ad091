#include "worker/training/tensors/averages/step_settings.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>
#include <typeinfo>

#include "base/hash.h"

namespace ddprun::worker {
namespace {

namespace optim = torch::optim;

// A schedule whose functions are rounded in unlike ways comes to numbers that differ by less than
// this part. No weight of float32 shows that.
constexpr double kRounding = 0x1p-40;

using Numbers = std::vector<StepSetting>;

void read(const optim::SGDOptions& options, std::size_t group, Numbers& numbers) {
  numbers.push_back({"lr", group, options.lr()});
  numbers.push_back({"momentum", group, options.momentum()});
  numbers.push_back({"dampening", group, options.dampening()});
  numbers.push_back({"weight_decay", group, options.weight_decay()});
  numbers.push_back({"nesterov", group, options.nesterov() ? 1.0 : 0.0});
}

template <typename Options>
void read_adam(const Options& options, std::size_t group, Numbers& numbers) {
  numbers.push_back({"lr", group, options.lr()});
  numbers.push_back({"beta1", group, std::get<0>(options.betas())});
  numbers.push_back({"beta2", group, std::get<1>(options.betas())});
  numbers.push_back({"eps", group, options.eps()});
  numbers.push_back({"weight_decay", group, options.weight_decay()});
  numbers.push_back({"amsgrad", group, options.amsgrad() ? 1.0 : 0.0});
}

void read(const optim::AdamOptions& options, std::size_t group, Numbers& numbers) {
  read_adam(options, group, numbers);
}

void read(const optim::AdamWOptions& options, std::size_t group, Numbers& numbers) {
  read_adam(options, group, numbers);
}

void read(const optim::AdagradOptions& options, std::size_t group, Numbers& numbers) {
  numbers.push_back({"lr", group, options.lr()});
  numbers.push_back({"lr_decay", group, options.lr_decay()});
  numbers.push_back({"weight_decay", group, options.weight_decay()});
  numbers.push_back({"initial_accumulator_value", group, options.initial_accumulator_value()});
  numbers.push_back({"eps", group, options.eps()});
}

void read(const optim::RMSpropOptions& options, std::size_t group, Numbers& numbers) {
  numbers.push_back({"lr", group, options.lr()});
  numbers.push_back({"alpha", group, options.alpha()});
  numbers.push_back({"eps", group, options.eps()});
  numbers.push_back({"weight_decay", group, options.weight_decay()});
  numbers.push_back({"momentum", group, options.momentum()});
  numbers.push_back({"centered", group, options.centered() ? 1.0 : 0.0});
}

void read(const optim::LBFGSOptions& options, std::size_t group, Numbers& numbers) {
  numbers.push_back({"lr", group, options.lr()});
  numbers.push_back({"max_iter", group, static_cast<double>(options.max_iter())});
  numbers.push_back({"max_eval", group, static_cast<double>(options.max_eval().value_or(-1))});
  numbers.push_back({"tolerance_grad", group, options.tolerance_grad()});
  numbers.push_back({"tolerance_change", group, options.tolerance_change()});
  numbers.push_back({"history_size", group, static_cast<double>(options.history_size())});
  numbers.push_back({"line_search_fn", group, options.line_search_fn() ? 1.0 : 0.0});
}

// How the numbers of one kind of optimizer are read.
struct Kind {
  bool (*is)(const optim::OptimizerOptions&);
  void (*read)(const optim::OptimizerOptions&, std::size_t, Numbers&);
  // Returns a parameter's count of steps. Null if this kind keeps none.
  std::int64_t (*steps)(const optim::OptimizerParamState&);
};

template <typename Options>
bool is(const optim::OptimizerOptions& options) {
  return dynamic_cast<const Options*>(&options) != nullptr;
}

template <typename Options>
void read_as(const optim::OptimizerOptions& options, std::size_t group, Numbers& numbers) {
  read(static_cast<const Options&>(options), group, numbers);
}

// Returns 0 for a state that is none of LibTorch's: nobody knows its count.
template <typename State>
std::int64_t steps_of(const optim::OptimizerParamState& state) {
  return typeid(state) == typeid(State) ? static_cast<const State&>(state).step() : 0;
}

// Null if it is none of LibTorch's, nor derived from one.
const Kind* kind_of(const optim::OptimizerOptions& options) {
  static constexpr std::array kKinds{
      Kind{is<optim::SGDOptions>, read_as<optim::SGDOptions>, nullptr},
      Kind{is<optim::AdamOptions>, read_as<optim::AdamOptions>, steps_of<optim::AdamParamState>},
      Kind{is<optim::AdamWOptions>, read_as<optim::AdamWOptions>, steps_of<optim::AdamWParamState>},
      Kind{is<optim::AdagradOptions>, read_as<optim::AdagradOptions>,
           steps_of<optim::AdagradParamState>},
      Kind{is<optim::RMSpropOptions>, read_as<optim::RMSpropOptions>,
           steps_of<optim::RMSpropParamState>},
      Kind{is<optim::LBFGSOptions>, read_as<optim::LBFGSOptions>, nullptr},
  };
  const auto* const found =
      std::ranges::find_if(kKinds, [&](const Kind& kind) { return kind.is(options); });
  return found == kKinds.end() ? nullptr : found;
}

bool same(double left, double right, bool round_alike) {
  if (left == right || (std::isnan(left) && std::isnan(right))) return true;
  const double size = std::max(std::abs(left), std::abs(right));
  return !round_alike && std::abs(left - right) <= kRounding * size;
}

}  // namespace

void StepSettings::add(const StepSetting& setting) {
  options_ = hash_step(options_, std::bit_cast<std::uint64_t>(setting.value));
  if (named_.size() < kNamedMax) named_.push_back(setting);
}

void StepSettings::add(const optim::Optimizer& optimizer) {
  const std::type_info* type = nullptr;  // of the options of the group before
  const Kind* kind = nullptr;
  std::size_t number = 0;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const optim::OptimizerOptions& options = group.options();
    if (type == nullptr || *type != typeid(options)) kind = kind_of(options);
    type = &typeid(options);
    if (kind != nullptr) {
      read_.clear();
      kind->read(options, number, read_);
      for (const StepSetting& setting : read_) add(setting);
      if (kind->steps != nullptr) add_counts(optimizer, group, number, kind->steps);
    }
    ++number;
  }
}

void StepSettings::add_counts(const optim::Optimizer& optimizer,
                              const optim::OptimizerParamGroup& group, std::size_t number,
                              std::int64_t (*steps)(const optim::OptimizerParamState&)) {
  std::int64_t most = 0;
  for (const at::Tensor& parameter : group.params()) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    const std::int64_t count =
        state == optimizer.state().end() || !state->second ? 0 : steps(*state->second);
    counts_ = hash_step(counts_, static_cast<std::uint64_t>(count));
    most = std::max(most, count);
  }
  add({"count of steps", number, static_cast<double>(most)});
}

void StepSettings::clear() {
  options_ = counts_ = kHashStart;
  named_.clear();
}

double rounding_kind() {
  std::uint32_t hash = 0x811c9dc5U;
  for (const char* byte = gnu_get_libc_version(); *byte != '\0'; ++byte)
    hash = (hash ^ static_cast<unsigned char>(*byte)) * 0x01000193U;
  for (const bool has : {__builtin_cpu_supports("fma") != 0, __builtin_cpu_supports("avx2") != 0})
    hash = (hash ^ (has ? 1U : 2U)) * 0x01000193U;
  return hash;
}

std::optional<std::string> unlike_settings(std::span<const StepSetting> first,
                                           std::span<const double> other, bool round_alike) {
  for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
    if (same(first[i].value, other[i], round_alike)) continue;
    return fmt::format("{} of group {} is {}, and {}", first[i].name, first[i].group,
                       first[i].value, other[i]);
  }
  if (first.size() == other.size()) return std::nullopt;
  return fmt::format("are {} numbers, and {}", first.size(), other.size());
}

}  // namespace ddprun::worker
