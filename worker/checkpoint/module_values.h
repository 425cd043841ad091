// LibTorch's tensors and modules as plain values, and back. They make a module's state_dict with
// the keys, the order and the types of Python's. So either side loads the other's. The training
// thread. Errors are one line.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/checkpoint.h>
#include <ddprun/value.h>

#include <cstdint>
#include <map>

#include "base/result.h"
#include "worker/checkpoint/weights_key.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

// On CPU the value shares the tensor's storage, all of it, as in Python. Write the value before the
// next step. From another device it is a copy. Errors: kInvalidArgument for a tensor that is not
// strided, or of a dtype that has no Python storage.
Result<Value> tensor_value(const at::Tensor& tensor);

// Makes tensors of values. Tensors that share a storage in the file share one here, as long as one
// reader makes them.
class TensorReader {
 public:
  // A tensor on CPU, in memory of its own. Fails where the file is damaged.
  Result<at::Tensor> read(const TensorValue& value);
  // Into a tensor of the same sizes, on any device and of any dtype. Straight from the file where
  // the two have one layout.
  Result<void> read_into(const TensorValue& value, const at::Tensor& target);

 private:
  std::map<const Storage*, at::Tensor> storages_;  // one dimension each
};

// Parameters and buffers, module by module.
Result<Value> state_dict(const torch::nn::Module& module);

// Finds the weights in a file (weights_key.h) and copies them into the module's tensors, in place.
// Names and shapes must be the module's: nothing is changed where they are not. If the file is
// damaged the module may be half filled. Do not use it then.
Result<FoundWeights> load_weights(const Value& file, torch::nn::Module& module,
                                  const LoadOptions& options = {});
// The same of a state_dict.
Result<PrefixChange> load_state_dict(const Value& state, torch::nn::Module& module,
                                     const LoadOptions& options = {});

}  // namespace ddprun::worker
