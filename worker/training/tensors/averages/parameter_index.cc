#include "worker/training/tensors/averages/parameter_index.h"

#include <algorithm>

namespace ddprun::worker {
namespace {

// Weights and biases may be in groups of their own, or norms may be. Then one, two or three are
// left out between two that are asked for.
constexpr std::size_t kLooks = 4;

}  // namespace

ParameterIndex::ParameterIndex(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const auto* const here = tensor.unsafeGetTensorImpl();
    if (places_.emplace(here, tensors_.size()).second) tensors_.push_back(here);
  }
}

std::size_t ParameterIndex::find(const at::Tensor& tensor) {
  const auto* const wanted = tensor.unsafeGetTensorImpl();
  if (next_ >= tensors_.size()) next_ = 0;
  const std::size_t end = std::min(next_ + kLooks, tensors_.size());
  std::size_t place = next_;
  while (place < end && tensors_[place] != wanted) ++place;
  if (place == end) {
    const auto found = places_.find(wanted);
    if (found == places_.end()) return kNone;
    place = found->second;
  }
  next_ = place + 1;
  return place;
}

}  // namespace ddprun::worker
