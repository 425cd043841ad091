// The checks of a DataParallel: of its module before a forward(), and of an optimizer before a
// step.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/training/data_parallel/gradient_reducer.h"
#include "worker/training/tensors/averages/parameter_index.h"

namespace ddprun {

using namespace worker;

namespace {

// The parameters of all modules that have a DataParallel in this process, and the copies that it
// knows.
struct OwnerTable {
  std::mutex mutex;
  std::unordered_multimap<const at::TensorImpl*, const DataParallel*> owners;
};

OwnerTable& listed() {
  static OwnerTable all;
  return all;
}

// LibTorch copies a module's parameters, with names that it puts together, for each parameters().
// The module's own list, without a copy.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

// Returns whether module.parameters() are these from `next` on, which moves behind them.
bool has_parameters(const torch::nn::Module& module, const std::vector<at::Tensor>& expected,
                    std::size_t& next) {
  for (const auto& item : OwnParameters::of(module)) {
    if (!item.value().defined()) continue;
    if (next == expected.size() || !item.value().is_same(expected[next])) return false;
    ++next;
  }
  return std::ranges::all_of(
      module.children(), [&](const auto& child) { return has_parameters(*child, expected, next); });
}

bool is_listed(const at::Tensor& tensor) {
  OwnerTable& all = listed();
  const std::lock_guard lock(all.mutex);
  return all.owners.contains(tensor.unsafeGetTensorImpl());
}

}  // namespace

void DataParallel::list_parameters(std::vector<at::Tensor> parameters) {
  OwnerTable& all = listed();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.owners, [this](const auto& owned) { return owned.second == this; });
  all_ = std::move(parameters);
  std::vector<at::Tensor> ours;
  if (!all_.empty()) {
    for (const Parameter& parameter : parameters_)
      if (parameter.trained) ours.push_back(parameter.tensor);
  }
  trained_ = ours.size();
  for (const auto* tensors : {&all_, &copies_})
    ours.insert(ours.end(), tensors->begin(), tensors->end());
  index_ = std::make_unique<ParameterIndex>(ours);
  for (const auto* tensors : {&all_, &copies_})
    for (const at::Tensor& tensor : *tensors)
      all.owners.emplace(tensor.unsafeGetTensorImpl(), this);
}

void DataParallel::add_copies(const std::vector<at::Tensor>& copies) {
  // MasterWeights calls this at each step.
  std::vector<NamedTensor> added;
  for (const at::Tensor& copy : copies) {
    if (index_->find(copy) == ParameterIndex::kNone) added.push_back({"", copy});
  }
  if (added.empty()) return;
  broadcast_values(added, *collective_, 0, "copies of weights");
  for (const auto& [name, tensor] : added) copies_.push_back(tensor);
  list_parameters(std::move(all_));
}

bool DataParallel::is_trained() const {
  return std::ranges::any_of(parameters_, [](const Parameter& parameter) {
    return parameter.trained && parameter.tensor.requires_grad();
  });
}

// The hooks are those of construction: a parameter that is unfrozen later would never be summed. A
// model that is frozen as a whole sums nothing, as the discriminator of a GAN while the generator
// trains.
void DataParallel::check_frozen() const {
  check_same_parameters();
  const bool may_be_unused = options_.find_unused_parameters && !options_.static_graph;
  for (const auto& [name, tensor, trained] : parameters_) {
    if (tensor.requires_grad() == trained) continue;
    if (trained && (!trains_ || may_be_unused)) continue;
    throw std::runtime_error(fmt::format(
        "parameter '{}' {} since DataParallel was made: make DataParallel after freezing", name,
        trained ? "was frozen" : "was unfrozen"));
  }
}

// Names are compared only where something has changed: this runs in each pass.
void DataParallel::check_same_parameters() const {
  std::size_t same = 0;
  if (has_parameters(*module_, all_, same) && same == all_.size()) return;
  for (const auto& [name, tensor] : parameters_of(*module_, options_.ignore)) {
    const auto before = std::ranges::find(parameters_, name, &Parameter::name);
    const bool added = before == parameters_.end();
    if (!added && before->tensor.is_same(tensor)) continue;
    if (!tensor.requires_grad() && (added || !before->trained)) continue;
    throw std::runtime_error(
        fmt::format("parameter '{}' was {} since DataParallel was made: make DataParallel after "
                    "building the model",
                    name, added ? "added" : "replaced"));
  }
}

// A part of the module, or another module with some of its parameters, will do.
void DataParallel::check_model(const torch::nn::Module& model) const {
  if (&model == module_.get() || collective_->world_size() == 1) return;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad() || is_listed(item.value())) continue;
    throw std::invalid_argument(fmt::format(
        "forward() got another module than DataParallel was made with: nobody sums the gradient of "
        "its parameter '{}'. A copy, as clone() makes it, has parameters of its own: give it a "
        "DataParallel of its own, or call forward() with the module itself",
        item.key()));
  }
}

void DataParallel::check_stepped(const std::vector<at::Tensor>& stepped) {
  own_stepped_.clear();
  if (collective_->world_size() == 1) return;
  bool all_ours = true;
  for (const at::Tensor& tensor : stepped) {
    const std::size_t place = index_->find(tensor);
    all_ours = all_ours && place != ParameterIndex::kNone;
    if (place < trained_) own_stepped_.push_back(place);
  }
  if (!all_ours) check_others(stepped);
}

void DataParallel::check_others(const std::vector<at::Tensor>& stepped) const {
  std::vector<const DataParallel*> others;
  std::size_t foreign = stepped.size();
  {
    OwnerTable& all = listed();
    const std::lock_guard lock(all.mutex);
    for (std::size_t i = 0; i < stepped.size(); ++i) {
      if (!stepped[i].grad().defined()) continue;
      const auto [begin, end] = all.owners.equal_range(stepped[i].unsafeGetTensorImpl());
      if (begin == end) foreign = std::min(foreign, i);
      const auto is_ours = [this](const auto& owned) { return owned.second == this; };
      if (begin == end || std::any_of(begin, end, is_ours)) continue;
      if (std::ranges::find(others, begin->second) == others.end()) others.push_back(begin->second);
    }
  }
  for (const DataParallel* other : others) other->check_reduced();
  if (foreign == stepped.size()) return;
  throw std::runtime_error(fmt::format(
      "step(): number {} of the optimizer's parameters, of size [{}], belongs to no module with a "
      "DataParallel: its gradient is this rank's own. Make its module a part of the one that "
      "DataParallel gets, give it a DataParallel of its own, or step it by an optimizer of its own,"
      " without parallel.step(). Copies of weights whose .grad the program sets: see add_copies()",
      foreign, fmt::join(stepped[foreign].sizes(), ", ")));
}

void DataParallel::share_state(torch::optim::Optimizer& optimizer) {
  // While a Join lives all ranks come here only in an iteration in which all have a batch.
  if (!state_of_ || !all_active_ || collective_->world_size() == 1) return;
  if (std::ranges::find(shared_, &optimizer) != shared_.end()) return;
  share_optimizer_state(optimizer, *collective_, *state_of_);
  shared_.push_back(&optimizer);
}

}  // namespace ddprun
