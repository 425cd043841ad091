#include "worker/training/tensors/averages/gradient_hooks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun::worker {
namespace {

namespace autograd = torch::autograd;

// Returns whether a parameter still has this node, which lives. Locking its weak pointer would
// count up and down, for each parameter of each pass.
bool has_node(const at::Tensor& parameter, const std::shared_ptr<autograd::Node>& node) {
  const auto* const meta = autograd::impl::get_autograd_meta(parameter);
  if (meta == nullptr) return false;
  const auto& own = meta->grad_accumulator_;
  return !own.owner_before(node) && !node.owner_before(own);
}

std::string kind(at::ScalarType dtype, at::IntArrayRef sizes, at::Device device) {
  return fmt::format("{} [{}] on {}", c10::toString(dtype), fmt::join(sizes, ", "), device.str());
}

}  // namespace

GradientHooks::GradientHooks(std::span<const NamedParameter> parameters,
                             std::function<void(std::size_t)> run)
    : parameters_(parameters), run_(std::move(run)) {
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.is_cpu() && std::ranges::find(devices_, tensor.device()) == devices_.end())
      devices_.push_back(tensor.device());
  }
  streams_ = current_streams();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    hooks_.push_back({.node = nullptr,
                      .sizes = tensor.sizes().vec(),
                      .dtype = tensor.scalar_type(),
                      .device = tensor.device()});
    add(i);
  }
}

// A graph may hold a node longer than this object lives. A hook left there would use freed memory.
GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
}

// A post hook on the node that adds to `.grad` runs when that has its final value of this
// backward(). A hook on the tensor would run before.
void GradientHooks::add(std::size_t parameter) {
  Hook& hook = hooks_[parameter];
  hook.node = autograd::impl::grad_accumulator(parameters_[parameter].tensor);
  hook.key = hook.node->add_post_hook(std::make_unique<autograd::utils::LambdaPostHook>(
      [this, parameter](const autograd::variable_list& outputs,
                        const autograd::variable_list& /*inputs*/) {
        run_(parameter);
        return outputs;
      }));
}

std::vector<c10::Stream> GradientHooks::current_streams() const {
  std::vector<c10::Stream> streams;
  for (const c10::Device device : devices_)
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return streams;
}

bool GradientHooks::renew() {
  bool renewed = false;
  const auto streams = current_streams();
  const bool are_same_streams = std::exchange(streams_, streams) == streams;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    Hook& hook = hooks_[i];
    if (tensor.scalar_type() != hook.dtype || tensor.sizes() != hook.sizes ||
        tensor.device() != hook.device) {
      throw std::runtime_error(fmt::format(
          "parameter '{}' is {} now, and was {} when DataParallel was made: convert and move the "
          "model before, or make DataParallel and the optimizer anew",
          name, kind(tensor.scalar_type(), tensor.sizes(), tensor.device()),
          kind(hook.dtype, hook.sizes, hook.device)));
    }
    // A frozen parameter needs none.
    if (!tensor.requires_grad()) continue;
    if (are_same_streams && has_node(tensor, hook.node)) continue;
    hook.node->del_post_hook(hook.key);
    hook.node.reset();  // else the parameter would give it again
    add(i);
    renewed = true;
  }
  return renewed;
}

std::vector<const autograd::Node*> GradientHooks::nodes() const {
  std::vector<const autograd::Node*> nodes;
  for (const Hook& hook : hooks_) nodes.push_back(hook.node.get());
  return nodes;
}

}  // namespace ddprun::worker
