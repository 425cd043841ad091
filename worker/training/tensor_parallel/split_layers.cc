#include <ATen/core/grad_mode.h>
#include <ddprun/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/normalization.h>

#include <ostream>

#include "worker/training/tensor_parallel/divided.h"
#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/held_collective.h"

namespace ddprun {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A rank's share of what all ranks add up. All ranks have its whole gradient.
class Share : public torch::autograd::Function<Share> {
 public:
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& whole,
                            std::int64_t ranks) {
    return whole / ranks;
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    worker::refuse_second_gradient("RowLinear");
    return {gradients[0], at::Tensor()};
  }
};

// A layer without a split, with rank 0's initial weights, on the device of the ranks.
template <typename Layer, typename Options>
Layer initial(const Options& options, const TensorGroup& group) {
  Layer layer(options);
  layer->to(worker::device_of(group.ranks()));
  const at::NoGradGuard no_gradients;
  for (const at::Tensor& parameter : layer->parameters()) group.share(parameter);
  return layer;
}

// This rank's rows, or columns, of a layer's tensor: a copy.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, const TensorGroup& group) {
  const std::int64_t part = whole.size(dim) / group.size();
  return whole.detach().narrow(dim, part * group.rank(), part).clone(at::MemoryFormat::Contiguous);
}

void check_features(const char* layer, const at::Tensor& input, std::int64_t features) {
  const std::int64_t given = input.dim() == 0 ? 0 : input.size(-1);
  worker::require(given == features, "{}: an input of {} features given, expected {}", layer, given,
                  features);
}

void check_sizes(const char* layer, const at::Tensor& whole, const at::Tensor& mine,
                 std::int64_t dim, const TensorGroup& group) {
  auto expected = mine.sizes().vec();
  expected[static_cast<std::size_t>(dim)] *= group.size();
  worker::require(whole.defined() && whole.sizes() == at::IntArrayRef(expected),
                  "{}: assign() of a layer with another size than its own whole", layer);
}

// The whole of a tensor whose parts lie in `dim`.
at::Tensor gathered(const at::Tensor& part, std::int64_t dim, const TensorGroup& group) {
  return group.gather(part.detach(), dim);
}

}  // namespace

ColumnLinearImpl::ColumnLinearImpl(const torch::nn::LinearOptions& whole_options,
                                   const TensorGroup& of_group)
    : options(whole_options), group_(of_group) {
  worker::require_divided("ColumnLinear", "out_features", options.out_features(), group_);
  const auto whole = initial<torch::nn::Linear>(options, group_);
  weight = register_parameter("weight", part_of(whole->weight, 0, group_));
  if (options.bias()) bias = register_parameter("bias", part_of(whole->bias, 0, group_));
}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& input) {
  check_features("ColumnLinear", input, options.in_features());
  return torch::nn::functional::linear(group_.enter(input), weight, bias);
}

void ColumnLinearImpl::assign(const torch::nn::Linear& whole) {
  check_sizes("ColumnLinear", whole->weight, weight, 0, group_);
  const at::NoGradGuard no_gradients;
  weight.copy_(part_of(whole->weight, 0, group_));
  if (bias.defined()) bias.copy_(part_of(whole->bias, 0, group_));
}

torch::nn::Linear ColumnLinearImpl::whole() const {
  torch::nn::Linear whole(options);
  whole->to(weight.device(), weight.scalar_type());
  const at::NoGradGuard no_gradients;
  whole->weight.copy_(gathered(weight, 0, group_));
  if (bias.defined()) whole->bias.copy_(gathered(bias, 0, group_));
  return whole;
}

void ColumnLinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("ddprun::ColumnLinear(in_features={}, out_features={}, bias={}, ranks={})",
                        options.in_features(), options.out_features(), options.bias(),
                        group_.size());
}

RowLinearImpl::RowLinearImpl(const torch::nn::LinearOptions& whole_options,
                             const TensorGroup& of_group)
    : options(whole_options), group_(of_group) {
  worker::require_divided("RowLinear", "in_features", options.in_features(), group_);
  const auto whole = initial<torch::nn::Linear>(options, group_);
  weight = register_parameter("weight", part_of(whole->weight, 1, group_));
  if (options.bias()) bias = register_parameter("bias", whole->bias.detach().clone());
}

at::Tensor RowLinearImpl::forward(const at::Tensor& input) {
  check_features("RowLinear", input, options.in_features() / group_.size());
  const at::Tensor share =
      bias.defined() && group_.size() > 1 ? Share::apply(bias, group_.size()) : bias;
  return group_.leave(torch::nn::functional::linear(input, weight, share));
}

void RowLinearImpl::assign(const torch::nn::Linear& whole) {
  check_sizes("RowLinear", whole->weight, weight, 1, group_);
  const at::NoGradGuard no_gradients;
  weight.copy_(part_of(whole->weight, 1, group_));
  if (bias.defined()) bias.copy_(whole->bias);
}

torch::nn::Linear RowLinearImpl::whole() const {
  torch::nn::Linear whole(options);
  whole->to(weight.device(), weight.scalar_type());
  const at::NoGradGuard no_gradients;
  whole->weight.copy_(gathered(weight, 1, group_));
  if (bias.defined()) whole->bias.copy_(bias);
  return whole;
}

void RowLinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("ddprun::RowLinear(in_features={}, out_features={}, bias={}, ranks={})",
                        options.in_features(), options.out_features(), options.bias(),
                        group_.size());
}

VocabEmbeddingImpl::VocabEmbeddingImpl(const torch::nn::EmbeddingOptions& whole_options,
                                       const TensorGroup& of_group)
    : options(whole_options), group_(of_group) {
  worker::require(!options.padding_idx() && !options.max_norm() && !options.scale_grad_by_freq() &&
                      !options.sparse() && !options._weight().defined(),
                  "VocabEmbedding: an option beside num_embeddings and embedding_dim given, "
                  "expected these two");
  worker::require_divided("VocabEmbedding", "num_embeddings", options.num_embeddings(), group_);
  const auto whole = initial<torch::nn::Embedding>(options, group_);
  weight = register_parameter("weight", part_of(whole->weight, 0, group_));
}

at::Tensor VocabEmbeddingImpl::forward(const at::Tensor& ids) {
  if (ids.is_cpu() && ids.numel() > 0) {
    const std::int64_t least = ids.min().item<std::int64_t>();
    const std::int64_t most = ids.max().item<std::int64_t>();
    worker::require(least >= 0 && most < options.num_embeddings(),
                    "VocabEmbedding: ids {} to {} given, expected 0 to {}", least, most,
                    options.num_embeddings() - 1);
  }
  if (group_.size() == 1) return torch::nn::functional::embedding(ids, weight);
  const std::int64_t rows = weight.size(0);
  const at::Tensor mine = ids - rows * group_.rank();
  const at::Tensor others = mine.lt(0).logical_or_(mine.ge(rows));
  const at::Tensor found = torch::nn::functional::embedding(mine.masked_fill(others, 0), weight);
  return group_.leave(found.masked_fill(others.unsqueeze(-1), 0));
}

void VocabEmbeddingImpl::assign(const torch::nn::Embedding& whole) {
  check_sizes("VocabEmbedding", whole->weight, weight, 0, group_);
  const at::NoGradGuard no_gradients;
  weight.copy_(part_of(whole->weight, 0, group_));
}

torch::nn::Embedding VocabEmbeddingImpl::whole() const {
  torch::nn::Embedding whole(options);
  whole->to(weight.device(), weight.scalar_type());
  const at::NoGradGuard no_gradients;
  whole->weight.copy_(gathered(weight, 0, group_));
  return whole;
}

void VocabEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("ddprun::VocabEmbedding(num_embeddings={}, embedding_dim={}, ranks={})",
                        options.num_embeddings(), options.embedding_dim(), group_.size());
}

SequenceLayerNormImpl::SequenceLayerNormImpl(const torch::nn::LayerNormOptions& options_of,
                                             const TensorGroup& of_group)
    : LayerNormImpl(options_of), group_(of_group) {
  to(worker::device_of(group_.ranks()));
}

at::Tensor SequenceLayerNormImpl::forward(const at::Tensor& input) {
  if (!group_.sequence_dim() || !options.elementwise_affine()) return LayerNormImpl::forward(input);
  return torch::nn::functional::layer_norm(
      input, torch::nn::functional::LayerNormFuncOptions(options.normalized_shape())
                 .weight(group_.copy(weight))
                 .bias(group_.copy(bias))
                 .eps(options.eps()));
}

}  // namespace ddprun
