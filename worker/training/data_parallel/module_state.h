// The start of a module on all ranks: its parameters and buffers by name, a check, and a copy. The
// check is that all ranks built the same model; the copy is of rank 0's values. No gradients here.
// Owns nothing. verify_same_model and broadcast_values must be called by all ranks, on the training
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

// In registration order, depth first. A tensor that two modules share appears once, as in Python.
// It has its first name that is not among those to leave out.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module,
                                       const std::vector<std::string>& leave_out = {});
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module,
                                    const std::vector<std::string>& leave_out = {});

// Returns the devices of `parameters`, in the order in which they come first.
std::vector<c10::Device> devices_of(std::span<const NamedTensor> parameters);
// Returns the place of each parameter's device among them.
std::vector<std::size_t> device_places(std::span<const NamedTensor> parameters);

// Returns whether the gradient of each of `parameters` is sparse. It belongs to an Embedding or
// EmbeddingBag with sparse=true, or is named in `also`. Throws std::invalid_argument where `also`
// has a name that is none of theirs.
std::vector<bool> sparse_ones(const torch::nn::Module& module,
                              const std::vector<NamedTensor>& parameters,
                              const std::vector<std::string>& also);

// Compares the number, sizes, strides and places of devices of `parameters` with rank 0's. A rank's
// second device may have any number. A difference on any rank throws std::runtime_error on all of
// them, naming the parameter. So does a rank that calls tell_refusal() instead.
void verify_same_model(const std::vector<NamedTensor>& parameters, Collective& collective);

// Instead of verify_same_model(), on a rank that cannot go on: the others would wait for it, up to
// their deadline. A failure to tell them is logged: `why` is the error that the program must see.
void tell_refusal(std::string_view why, Collective& collective);

// Copies the values of rank `root` into the tensors of the other ranks, in place and unseen by
// autograd. Tensors of all types are packed together, so that there are few transfers. All must be
// dense and on the collective's device. `of`: what messages call it.
void broadcast_values(const std::vector<NamedTensor>& tensors, Collective& collective, int root = 0,
                      OperationName of = "model");

// The most bytes of one packed transfer; a larger tensor travels alone. PyTorch's number
// (torch/nn/parallel/distributed.py, broadcast_bucket_size). Without a limit the packed copy would
// double the memory of a large model.
inline constexpr std::size_t kCoalescedBytes = std::size_t{250} << 20;

}  // namespace ddprun::worker
