// How a collective sees tensors: which dtypes, and in which memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstdint>
#include <optional>

namespace ddprun::worker {

// The collective's name of a torch dtype; nothing if gradients of that type cannot be summed. That
// of a complex type names its parts: an element is two of them.
std::optional<Dtype> summable(at::ScalarType type);

// The same for the program's own tensors, which may be integers, too.
std::optional<Dtype> reducible(at::ScalarType type);

// A new tensor of one dimension in memory of the collective, which it keeps. All ranks must call
// it. `options`: dtype and device.
at::Tensor allocate_tensor(std::int64_t elements, const at::TensorOptions& options,
                           Collective& collective);

// A contiguous tensor as the collective sees it. Its dtype must be reducible.
Flat flat_of(const at::Tensor& tensor);

}  // namespace ddprun::worker
