// Finds tensors by identity among those of a list. Quick if they are asked for in about the order
// of the list, as an optimizer has them. A step asks for each of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <limits>
#include <unordered_map>
#include <vector>

namespace ddprun::worker {

class ParameterIndex {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // The tensors must live as long as this. One that comes twice has one place.
  explicit ParameterIndex(const std::vector<at::Tensor>& tensors = {});

  // Its place in the list, or kNone.
  std::size_t find(const at::Tensor& tensor);

 private:
  std::vector<const c10::TensorImpl*> tensors_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
  std::size_t next_ = 0;  // behind the one that was found last
};

}  // namespace ddprun::worker
