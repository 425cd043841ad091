// What a DataParallel asks of its module before a forward(), and of an optimizer before a step.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

#include "worker/reducer/data_parallel.h"
#include "worker/reducer/gradient_reducer.h"

namespace ddprun::worker {
namespace {

// The parameters of all modules that have a DataParallel in this process, once for each of these.
struct Listed {
  std::mutex mutex;
  std::unordered_multiset<const at::TensorImpl*> parameters;
};

Listed& listed() {
  static Listed all;
  return all;
}

}  // namespace

void DataParallel::list_parameters(std::vector<at::Tensor> parameters) {
  Listed& all = listed();
  const std::lock_guard lock(all.mutex);
  for (const at::Tensor& tensor : all_) {
    const auto found = all.parameters.find(tensor.unsafeGetTensorImpl());
    if (found != all.parameters.end()) all.parameters.erase(found);
  }
  all_ = std::move(parameters);
  for (const at::Tensor& tensor : all_) all.parameters.insert(tensor.unsafeGetTensorImpl());
}

bool DataParallel::is_trained() const {
  return std::ranges::any_of(parameters_, [](const Parameter& parameter) {
    return parameter.trained && parameter.tensor.requires_grad();
  });
}

// The hooks are those of construction: what is unfrozen later would never be summed. A model that is frozen as a
// whole sums nothing, as the discriminator of a GAN while the generator trains.
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
  if (std::ranges::equal(module_->parameters(), all_, &at::Tensor::is_same)) return;
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

// An optimizer of copies, like MasterWeights, has none of our parameters: the program knows what it does there.
void DataParallel::check_stepped(const std::vector<at::Tensor>& stepped) const {
  if (collective_->world_size() == 1) return;
  Listed& all = listed();
  const std::lock_guard lock(all.mutex);
  const auto is_listed = [&all](const at::Tensor& tensor) {
    return all.parameters.contains(tensor.unsafeGetTensorImpl());
  };
  const auto foreign = std::ranges::find_if(stepped, [&](const at::Tensor& tensor) {
    return tensor.grad().defined() && !is_listed(tensor);
  });
  if (foreign == stepped.end() || std::ranges::none_of(stepped, is_listed)) return;
  throw std::runtime_error(fmt::format(
      "step(): number {} of the optimizer's parameters, of size [{}], belongs to no module with a "
      "DataParallel: its gradient is this rank's own. Make its module a part of the one that DataParallel "
      "gets, give it a DataParallel of its own, or step it by an optimizer of its own",
      foreign - stepped.begin(), fmt::join(foreign->sizes(), ", ")));
}

}  // namespace ddprun::worker
