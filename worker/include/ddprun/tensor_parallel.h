// Layers that are split over a group of ranks, since one is too large for a device. Sums are where
// Megatron-LM has them: one in the forward pass of a block and one in its backward pass. See
// Shoeybi et al.: "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
// Parallelism", 2019. The numbers are those of PyTorch 2.11's parallelize_module() with
// ColwiseParallel, RowwiseParallel, SequenceParallel and loss_parallel().
//
//   TensorGroup group(ranks);  // or a group of them: *ranks.split(…)
//   VocabEmbedding words(torch::nn::EmbeddingOptions(32000, 512), group);
//   ColumnLinear up(torch::nn::LinearOptions(512, 2048), group);
//   RowLinear down(torch::nn::LinearOptions(2048, 512), group);
//   ColumnLinear head(torch::nn::LinearOptions(512, 32000).bias(false), group);
//
//   const auto hidden = down(torch::gelu(up(words(ids))));  // ids are the same on all ranks
//   parallel_cross_entropy(head(hidden).flatten(0, 1), targets, group).backward();
//
// A rank steps its own parts. All ranks must call the same layers in the same order, and so must
// their backward passes. Gradients of what all ranks have whole are the same on all of them.
// Nothing is averaged: DataParallel over another group does that. One thread. Errors are
// std::invalid_argument for layers and inputs that do not fit, and CollectiveError.
// docs/tensor_parallel.md says more.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/tensor_collective.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>

namespace ddprun {

// The ranks that share layers, and the operations between these. Copies are the same group.
//
// An operation has another one as its gradient. Call one only where its input and the gradient of
// its result are as it says. "Whole" is a tensor that all ranks have, with the same elements. A
// "part" is this rank's of a dimension that all ranks divide. A "term" is of the whole's sizes, and
// the sum of all ranks' terms is the whole. Inputs lie on the collective's device.
class TensorGroup {
 public:
  // Takes the ranks, which must outlive this, its copies, their layers and graphs. Sends nothing.
  // With `sequence_dim` between the split layers a tensor has this rank's part of that dimension
  // alone: Megatron's sequence parallel. See Korthikanti et al.: "Reducing Activation Recomputation
  // in Large Transformer Models", 2022. In PyTorch it is 1, the second of (batch, sequence,
  // features). 0 is faster.
  explicit TensorGroup(Collective& ranks, std::optional<std::int64_t> sequence_dim = std::nullopt);

  // Returns this rank's number in the group.
  int rank() const { return ranks_->rank(); }
  // Returns the number of ranks.
  int size() const { return ranks_->world_size(); }
  // Returns the dimension of sequence parallel; nothing: there is none.
  std::optional<std::int64_t> sequence_dim() const { return sequence_dim_; }
  // Returns the ranks.
  Collective& ranks() const { return *ranks_; }
  // Returns the operations of the ranks on tensors, which all copies share.
  const std::shared_ptr<TensorCollective>& tensors() const { return tensors_; }

  // Returns `whole` for computations of each rank's own. The gradient is a term, and is summed.
  at::Tensor copy(const at::Tensor& whole) const;
  // Returns the sum of all ranks' terms. The gradient is whole, and goes back as it is.
  at::Tensor sum(const at::Tensor& term) const;
  // Returns this rank's part. The gradient is a part, and is gathered. Throws std::invalid_argument
  // where the dimension does not divide.
  at::Tensor split(const at::Tensor& whole, std::int64_t dim) const;
  // Returns the parts of all ranks, joined. The gradient is whole: its part goes back.
  at::Tensor gather(const at::Tensor& part, std::int64_t dim) const;
  // Returns the parts of all ranks, joined, for computations of each rank's own. The gradient is a
  // term; this rank's part of its sum goes back.
  at::Tensor gather_copy(const at::Tensor& part, std::int64_t dim) const;
  // Returns this rank's part of the sum of all ranks' terms. The gradient is a part, and is
  // gathered. Throws std::invalid_argument where the dimension does not divide.
  at::Tensor scatter_sum(const at::Tensor& term, std::int64_t dim) const;

  // Goes into split layers: gather_copy() with sequence parallel, else copy().
  at::Tensor enter(const at::Tensor& tensor) const;
  // Comes out of split layers: scatter_sum() with sequence parallel, else sum().
  at::Tensor leave(const at::Tensor& term) const;

  // Gives rank 0's elements to all ranks, in place. All ranks must call it.
  void share(const at::Tensor& tensor) const;

 private:
  Collective* ranks_;  // not null
  std::shared_ptr<TensorCollective> tensors_;
  std::optional<std::int64_t> sequence_dim_;
};

// The module that ColumnLinear holds: torch::nn::Linear, of whose output features each rank has a
// part.
class ColumnLinearImpl : public torch::nn::Module {
 public:
  // Makes the layer with the initial weights of rank 0's torch::nn::Linear, on the collective's
  // device. All ranks must call it. Throws std::invalid_argument, before any rank is asked, unless
  // the group divides out_features.
  ColumnLinearImpl(const torch::nn::LinearOptions& whole_options, const TensorGroup& of_group);

  // Returns this rank's part of the output, (…, out_features/ranks). `input`: (…, in_features),
  // and whole; with sequence parallel this rank's part of the sequence. All ranks must call it.
  at::Tensor forward(const at::Tensor& input);

  // Takes its part of a layer without a split. This rank alone.
  void assign(const torch::nn::Linear& whole);
  // Returns a copy of the layer without a split, on all ranks. All must call it.
  torch::nn::Linear whole() const;
  // Writes one line with the options.
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LinearOptions options;  // of the whole
  at::Tensor weight;                 // (out_features/ranks, in_features)
  at::Tensor bias;                   // (out_features/ranks), or undefined

 private:
  TensorGroup group_;
};
TORCH_MODULE(ColumnLinear);

// The module that RowLinear holds: torch::nn::Linear, of whose input features each rank has a part.
class RowLinearImpl : public torch::nn::Module {
 public:
  // Makes the layer, as ColumnLinear's constructor does. Throws std::invalid_argument unless the
  // group divides in_features.
  RowLinearImpl(const torch::nn::LinearOptions& whole_options, const TensorGroup& of_group);

  // Returns the output, (…, out_features), whole; with sequence parallel this rank's part of the
  // sequence. `input`: this rank's part of the features, (…, in_features/ranks), as a
  // ColumnLinear gives it. All ranks must call it. As in PyTorch each rank adds its share of the
  // bias before the sum.
  at::Tensor forward(const at::Tensor& input);

  // Takes its part of a layer without a split. This rank alone.
  void assign(const torch::nn::Linear& whole);
  // Returns a copy of the layer without a split, on all ranks. All must call it.
  torch::nn::Linear whole() const;
  // Writes one line with the options.
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LinearOptions options;  // of the whole
  at::Tensor weight;                 // (out_features, in_features/ranks)
  at::Tensor bias;                   // (out_features), the same on all ranks, or undefined

 private:
  TensorGroup group_;
};
TORCH_MODULE(RowLinear);

// The module that VocabEmbedding holds: torch::nn::Embedding, of whose rows each rank has a part.
class VocabEmbeddingImpl : public torch::nn::Module {
 public:
  // Makes the layer, as ColumnLinear's constructor does. Throws std::invalid_argument unless the
  // group divides num_embeddings. So it does for options beside the two sizes.
  VocabEmbeddingImpl(const torch::nn::EmbeddingOptions& whole_options, const TensorGroup& of_group);

  // Returns the rows of these numbers, (…, embedding_dim), whole; with sequence parallel this
  // rank's part of the sequence. `ids`: int64, the same on all ranks. All ranks must call it.
  // Throws std::invalid_argument for a number that is no row; on a GPU it does not look.
  at::Tensor forward(const at::Tensor& ids);

  // Takes its part of a layer without a split. This rank alone.
  void assign(const torch::nn::Embedding& whole);
  // Returns a copy of the layer without a split, on all ranks. All must call it.
  torch::nn::Embedding whole() const;
  // Writes one line with the options.
  void pretty_print(std::ostream& stream) const override;

  torch::nn::EmbeddingOptions options;  // of the whole
  at::Tensor weight;                    // (num_embeddings/ranks, embedding_dim)

 private:
  TensorGroup group_;
};
TORCH_MODULE(VocabEmbedding);

// The module that SequenceLayerNorm holds: torch::nn::LayerNorm between split layers. With sequence
// parallel each rank's gradient of weight and bias is a term; these are summed.
class SequenceLayerNormImpl : public torch::nn::LayerNormImpl {
 public:
  // Makes the layer, on the collective's device. Sends nothing: its weights are ones and zeros.
  SequenceLayerNormImpl(const torch::nn::LayerNormOptions& options_of, const TensorGroup& of_group);

  // Normalises as torch::nn::LayerNorm. All ranks must call it.
  at::Tensor forward(const at::Tensor& input);

 private:
  TensorGroup group_;
};
TORCH_MODULE(SequenceLayerNorm);

// Options of parallel_cross_entropy().
struct ParallelCrossEntropyOptions {
  at::Reduction::Reduction reduction = at::Reduction::Mean;  // Mean, Sum or None
  std::int64_t ignore_index = -100;                          // a target that counts as none
};

// Returns the cross entropy of logits that are split over their classes: PyTorch's
// loss_parallel(). Three numbers for each row travel, and no logits. `logits`: this rank's part,
// (rows, classes/ranks), as a ColumnLinear gives it. `targets`: (rows), int64, the same on all
// ranks. The result is whole, and so is its gradient. All ranks must call it. Throws
// std::invalid_argument for sizes that do not fit, and for a target that is no class. On a GPU it
// does not look at the targets.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const TensorGroup& group,
                                  const ParallelCrossEntropyOptions& options = {});

}  // namespace ddprun
