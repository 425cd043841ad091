// Tensors as the elements that travel: in a row, as numbers or as bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <string>

namespace ddprun::worker {

// Type and sizes, as all ranks can compare them: "Float [2, 3]".
std::string description_of(const at::Tensor& tensor);

// Throws std::invalid_argument, "all_reduce: why".
[[noreturn]] void refuse_tensor(const char* operation, const std::string& why);

// Returns whether its memory has its elements in a row, as they are.
bool is_plain(const at::Tensor& tensor);

// The tensor, or a copy that is plain.
at::Tensor plain(const at::Tensor& tensor);

// The bytes of a plain tensor, in a row: the same memory.
at::Tensor in_bytes(const at::Tensor& tensor);

// The numbers of a plain tensor, in a row: the same memory. A complex element has two.
at::Tensor in_numbers(const at::Tensor& tensor);

// The bytes of a plain tensor, as the collective sees them.
Flat bytes_of(const at::Tensor& tensor, const OperationName& name);

}  // namespace ddprun::worker
