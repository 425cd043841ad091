#include "worker/training/tensors/averages/gradient_origins.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddprun::worker {
namespace {

// A message names so many parameters.
constexpr std::size_t kNamedMax = 3;

// "'a', 'b', 'c' and 7 more": those of `parameters` that are `meant`.
template <typename Meant>
std::string names_of(std::span<const NamedParameter> parameters, const Meant& meant) {
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!meant(i) || ++count > kNamedMax) continue;
    text += fmt::format("{}'{}'", count == 1 ? "" : ", ", parameters[i].name);
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  return text;
}

// An average is known by its version, which autograd counts up from 0 at each change. That of an
// average begins here. So nothing is kept of it. A pointer to it, even a weak one, would keep its
// memory for longer than the program does. All gradients of a pass would lie elsewhere.
constexpr std::uint32_t kVersion = 0x40000000;

bool has_version_of_average(const at::Tensor& gradient) {
  const c10::VariableVersion& version = gradient.unsafeGetTensorImpl()->version_counter();
  return version.enabled() && version.current_version() >= kVersion;
}

void set_version_of_average(const at::Tensor& gradient) {
  if (!gradient.defined() || has_version_of_average(gradient)) return;
  c10::VariableVersion version = gradient.unsafeGetTensorImpl()->version_counter();
  if (version.enabled()) version.set_version(kVersion);
}

}  // namespace

GradientOrigins::GradientOrigins(std::span<const NamedParameter> parameters)
    : parameters_(parameters), marks_(parameters.size()) {}

void GradientOrigins::begin(bool averaged) {
  silent_ = !averaged;
  begun_ = averaged;
  for (Mark& mark : marks_) mark.fresh = false;
}

void GradientOrigins::add_own(std::size_t parameter) {
  marks_.at(parameter).own = silent_ ? OwnReason::kUnderNoSync : OwnReason::kWithoutForward;
}

void GradientOrigins::set_average(std::size_t parameter) {
  begun_ = false;
  Mark& mark = marks_.at(parameter);
  mark.own = OwnReason::kNo;
  mark.fresh = true;
  set_version_of_average(parameters_[parameter].tensor.grad());
}

bool GradientOrigins::is_average(std::size_t parameter) const {
  const Mark& mark = marks_.at(parameter);
  if (mark.own != OwnReason::kNo) return false;
  if (mark.fresh) return true;
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  return !gradient.defined() || has_version_of_average(gradient) ||
         mark.replaced._unsafe_get_target() == gradient.unsafeGetTensorImpl();
}

void GradientOrigins::follow(std::size_t parameter) {
  set_version_of_average(parameters_[parameter].tensor.grad());
}

void GradientOrigins::step(std::span<const std::size_t> stepped) {
  for (const std::size_t parameter : stepped) {
    Mark& mark = marks_.at(parameter);
    if (!std::exchange(mark.fresh, false)) continue;
    const at::Tensor& gradient = parameters_[parameter].tensor.grad();
    // No version is changed of what the program may use elsewhere.
    if (gradient.defined() && !has_version_of_average(gradient))
      mark.replaced = gradient.getIntrusivePtr();
  }
}

void GradientOrigins::clear() {
  for (Mark& mark : marks_) mark = Mark();
  begun_ = silent_ = false;
}

bool GradientOrigins::any_silent() const {
  return std::ranges::any_of(marks_,
                             [](const Mark& mark) { return mark.own == OwnReason::kUnderNoSync; });
}

std::string GradientOrigins::name_all(OwnReason own) const {
  return names_of(parameters_, [&](std::size_t i) {
    return parameters_[i].tensor.grad().defined() && !is_average(i) && marks_[i].own == own;
  });
}

std::optional<std::string> GradientOrigins::why_own() const {
  bool all_averages = true;
  for (std::size_t i = 0; i < marks_.size() && all_averages; ++i) {
    // Asked first: in most steps nothing else need be looked at.
    all_averages =
        marks_[i].is_fresh_average() || !parameters_[i].tensor.grad().defined() || is_average(i);
  }
  if (all_averages) return std::nullopt;
  if (const auto names = name_all(OwnReason::kUnderNoSync); !names.empty()) {
    return fmt::format(
        "the gradients of {} are this rank's own: the last backward() was under NoSync. End the "
        "NoSync before the last forward() and backward() of a step, or call zero_grad()",
        names);
  }
  if (const auto names = name_all(OwnReason::kWithoutForward); !names.empty()) {
    return fmt::format(
        "the gradients of {} have this rank's own in them: a backward() ran without a forward() of "
        "DataParallel before it. Call parallel.forward(net, ...) in place of net->forward(...). "
        "After one forward() call backward() once, on the sum of the losses; or make all but the "
        "last forward() and backward() under NoSync. If backward() computes parts again "
        "(activation "
        "checkpointing), set static_graph. Or call zero_grad()",
        names);
  }
  return fmt::format(
      "the gradients of {} were not averaged: {}. Let backward() compute them, and not "
      "torch::autograd::grad(); or call zero_grad()",
      name_all(OwnReason::kNo),
      begun_ ? "forward() of DataParallel has had no backward()"
             : "no backward() after a forward() of DataParallel has set them");
}

}  // namespace ddprun::worker
