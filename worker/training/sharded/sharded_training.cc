#include "worker/training/sharded/sharded_training.h"

#include <ATen/core/grad_mode.h>
#include <ddprun/data_parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "worker/training/data_parallel/malloc_settings.h"
#include "worker/training/data_parallel/module_state.h"
#include "worker/training/tensors/stepped_tensors.h"

namespace ddprun::worker {
namespace {

namespace autograd = torch::autograd;

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("ShardedParallel: " + why);
}

bool lies_in(const std::string& parameter, const std::string& unit) {
  return unit.empty() || parameter.starts_with(unit + ".");
}

// Returns the unit that a parameter of this name is in.
std::size_t unit_of(const std::string& parameter, const std::vector<std::string>& units) {
  std::optional<std::size_t> here;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!lies_in(parameter, units[i])) continue;
    if (here)
      refuse(fmt::format("parameter '{}' lies in the units '{}' and '{}': units do not nest",
                         parameter, units[*here], units[i]));
    here = i;
  }
  if (!here)
    refuse(
        fmt::format("parameter '{}' is in no unit: name the module that it is used in", parameter));
  return *here;
}

// Returns the unit that a parameter is in, by all of its names. One that two modules share has
// several.
std::size_t unit_of(const at::Tensor& parameter,
                    const torch::OrderedDict<std::string, at::Tensor>& all,
                    const std::vector<std::string>& units) {
  std::optional<std::size_t> found;
  for (const auto& item : all) {
    if (!item.value().is_same(parameter)) continue;
    const std::size_t here = unit_of(item.key(), units);
    if (found && *found != here)
      refuse(fmt::format("parameter '{}' is shared by the units '{}' and '{}': make them one unit",
                         item.key(), units[*found], units[here]));
    found = here;
  }
  return *found;
}

struct NamedParts {
  std::vector<const torch::nn::Module*> modules;
  std::vector<FlatUnit> units;
};

// Finds the modules of these names, which differ.
std::vector<const torch::nn::Module*> modules_named(const torch::nn::Module& module,
                                                    const std::vector<std::string>& names) {
  const auto modules = module.named_modules("", /*include_self=*/true);
  std::vector<const torch::nn::Module*> named;
  for (const std::string& name : names) {
    const auto* const found = modules.find(name);
    if (found == nullptr) refuse(fmt::format("no module is named '{}'", name));
    if (std::ranges::count(names, name) > 1) refuse(fmt::format("'{}' is named twice", name));
    named.push_back(found->get());
  }
  return named;
}

void check_device(const NamedTensor& parameter, const Collective& ranks) {
  const bool cuda = ranks.device() == Device::kCuda;
  if (cuda ? parameter.tensor.is_cuda() : parameter.tensor.is_cpu()) return;
  refuse(fmt::format("parameter '{}' is on {}, and '{}' has ranks on {}", parameter.name,
                     parameter.tensor.device().str(), ranks.name(), cuda ? "GPUs" : "CPUs"));
}

// Checks and names the parts of one rank's own model.
NamedParts named_units(const torch::nn::Module& module, const Collective& ranks,
                       const std::vector<std::string>& names) {
  if (names.empty()) refuse("expected the name of a unit, or several: none is there");
  const auto all = module.named_parameters();
  NamedParts named{.modules = modules_named(module, names), .units = {}};
  std::vector<std::vector<NamedTensor>> parameters(names.size());
  for (NamedTensor& parameter : parameters_of(module)) {
    check_device(parameter, ranks);
    parameters[unit_of(parameter.tensor, all, names)].push_back(std::move(parameter));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (parameters[i].empty()) refuse(fmt::format("unit '{}' has no parameters", names[i]));
    named.units.emplace_back(names[i], std::move(parameters[i]), ranks.world_size());
  }
  return named;
}

}  // namespace

ShardedTraining::ShardedTraining(std::shared_ptr<torch::nn::Module> module, Collective& ranks,
                                 const std::vector<std::string>& units, MakeUnits make)
    : module_(std::move(module)),
      ranks_(ranks),
      order_(units.size()),
      pass_(units.size()),
      unsummed_(units.size()) {
  try {
    NamedParts named = named_units(*module_, ranks, units);
    modules_ = std::move(named.modules);
    flat_ = std::move(named.units);
  } catch (const std::invalid_argument& refusal) {
    // The other ranks are on their way to compare their models with this one.
    tell_refusal(refusal.what(), ranks);
    throw;
  }
  set_up_malloc();
  verify_same_model(parameters_of(*module_), ranks);
  broadcast_values(buffers_of(*module_), ranks);
  add_hooks();  // while the parameters have their sizes: gradients are compared with them
  units_ = make(flat_, ranks);
  ::malloc_trim(0);  // the whole model was here
  self_ = std::make_shared<ShardedTraining*>(this);
  note_versions();
}

// A graph may hold a node longer than this object lives. A hook left there would use freed memory.
ShardedTraining::~ShardedTraining() {
  for (const Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
}

// A post hook on the node that adds to `.grad` runs when that has its final value of this
// backward().
void ShardedTraining::add_hooks() {
  for (std::size_t unit = 0; unit < flat_.size(); ++unit) {
    for (const NamedTensor& parameter : flat_[unit].parameters()) {
      auto node = autograd::impl::grad_accumulator(parameter.tensor);
      auto hook = std::make_unique<autograd::utils::LambdaPostHook>(
          [this, unit](const autograd::variable_list& outputs,
                       const autograd::variable_list& /*inputs*/) {
            on_gradient(unit);
            return outputs;
          });
      const std::uintptr_t key = node->add_post_hook(std::move(hook));
      hooks_.push_back({std::move(node), key});
    }
  }
}

std::size_t ShardedTraining::before_forward(const torch::nn::Module& module) {
  const auto at = std::ranges::find(modules_, &module);
  if (at == modules_.end()) refuse("forward() got a module that is no unit");
  const auto unit = static_cast<std::size_t>(at - modules_.begin());
  if (shards()[unit]._version() != versions_[unit])
    throw std::runtime_error(fmt::format(
        "ShardedParallel: the shard of unit '{}' was changed outside of step(): other ranks may "
        "have read it half "
        "changed. Call step(optimizer) instead of optimizer.step()",
        flat_[unit].name()));
  const auto next = order_.begin_forward(unit, at::GradMode::is_enabled());
  units_->gather(unit);
  gather_ahead(next);
  return unit;
}

// A tensor's hook runs before the node that made the tensor, and so before all of the unit.
void ShardedTraining::after_forward(std::size_t unit, const std::vector<at::Tensor*>& outputs) {
  for (at::Tensor* const output : outputs) {
    if (!output->defined() || !output->grad_fn()) continue;
    output->register_hook([self = std::weak_ptr(self_), unit](const at::Tensor& /*gradient*/) {
      const auto sharded = self.lock();
      if (!sharded) throw std::logic_error("ShardedParallel: it is gone, and backward() needs it");
      (*sharded)->begin_backward(unit);
    });
  }
  const bool stays = at::GradMode::is_enabled() && order_.is_last(unit);
  if (!stays && !pass_[unit].in_backward) units_->release(unit);
}

// One unit is gathered ahead. If another one came than was expected, that is given up.
void ShardedTraining::gather_ahead(std::optional<std::size_t> unit) {
  const auto before = std::exchange(ahead_, unit);
  if (before && before != unit && !flat_[*before].is_placed()) units_->release(*before);
  if (unit) units_->gather_ahead(*unit);
}

void ShardedTraining::begin_backward(std::size_t unit) {
  if (std::exchange(pass_[unit].in_backward, true)) return;
  // The engine runs the callback at the end of this backward(), before it returns to the program.
  if (!std::exchange(end_queued_, true))
    autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
  const auto next = order_.begin_backward(unit);
  units_->gather(unit);
  gather_ahead(next);
}

void ShardedTraining::on_gradient(std::size_t unit) {
  begin_backward(unit);
  if (++pass_[unit].gradients < flat_[unit].parameters().size()) return;
  pass_[unit] = {};
  units_->release(unit);
  if (!sums_) return;
  for (const std::size_t complete : order_.complete(unit)) sum(complete);
}

void ShardedTraining::end_backward() {
  end_queued_ = false;
  gather_ahead(std::nullopt);
  for (std::size_t unit = 0; unit < pass_.size(); ++unit) {
    pass_[unit] = {};
    units_->release(unit);
  }
  for (const std::size_t unit : order_.end_backward()) {
    if (sums_)
      sum(unit);
    else
      unsummed_[unit] = true;
  }
  if (!sums_) return;
  for (std::size_t unit = 0; unit < unsummed_.size(); ++unit)
    if (unsummed_[unit]) sum(unit);
  units_->finish_sums();
}

void ShardedTraining::sum(std::size_t unit) {
  units_->sum(unit);
  unsummed_[unit] = false;
}

void ShardedTraining::begin_step(const std::vector<at::Tensor>& stepped) {
  require_whole_pass();
  require_sums();
  if (any_is_of(stepped, module_->parameters()))
    refuse(
        "the optimizer has the module's parameters, and would step nothing: make it with "
        "sharded.shards()");
  units_->begin_step();
}

void ShardedTraining::end_step() {
  units_->end_step();
  note_versions();
}

std::vector<ShardedParameter> ShardedTraining::parameters() const {
  const auto names = module_->named_parameters();
  std::vector<ShardedParameter> parameters;
  for (std::size_t unit = 0; unit < flat_.size(); ++unit) {
    const auto& own = flat_[unit].parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      ShardedParameter parameter = flat_[unit].parameter_of(ranks_.rank(), i);
      parameter.shard = unit;
      parameters.push_back(parameter);
      for (const auto& item : names) {
        if (!item.value().is_same(own[i].tensor) || item.key() == own[i].name) continue;
        parameter.name = item.key();
        parameter.again = true;
        parameters.push_back(parameter);
      }
    }
  }
  return parameters;
}

// The engine forgets its callback when a backward() ends with an exception.
void ShardedTraining::require_whole_pass() const {
  if (end_queued_)
    throw std::logic_error(
        "ShardedParallel: a backward() ended with an exception: sums are missing, and nothing here "
        "can be used any more");
}

void ShardedTraining::require_sums() const {
  const auto unit = std::ranges::find(unsummed_, true);
  if (unit == unsummed_.end()) return;
  throw std::logic_error(
      fmt::format("ShardedParallel: the gradients of unit '{}' are not summed: call "
                  "set_gradient_sync(true) before the last backward()",
                  flat_[static_cast<std::size_t>(unit - unsummed_.begin())].name()));
}

void ShardedTraining::note_versions() {
  versions_.clear();
  for (const at::Tensor& shard : shards())
    versions_.push_back(static_cast<std::uint32_t>(shard._version()));
}

torch::OrderedDict<std::string, at::Tensor> ShardedTraining::full_state_dict() {
  require_whole_pass();
  const at::NoGradGuard no_grad;
  std::unordered_map<const at::TensorImpl*, at::Tensor> copies;
  for (std::size_t unit = 0; unit < flat_.size(); ++unit) {
    units_->gather(unit);
    for (const NamedTensor& parameter : flat_[unit].parameters()) {
      if (ranks_.rank() == 0)
        copies[parameter.tensor.unsafeGetTensorImpl()] = parameter.tensor.detach().clone();
    }
    units_->release(unit);
  }
  torch::OrderedDict<std::string, at::Tensor> state("tensor");
  if (ranks_.rank() != 0) return state;
  for (const auto& item : module_->named_parameters())
    state.insert(item.key(), copies.at(item.value().unsafeGetTensorImpl()));
  for (const auto& item : module_->named_buffers())
    state.insert(item.key(), item.value().detach().clone());
  return state;
}

}  // namespace ddprun::worker
