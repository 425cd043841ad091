#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ddprun/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/training/tensor_parallel/divided.h"
#include "worker/training/tensors/held_collective.h"

namespace ddprun {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Between the tensors of the ranks. The gradient of each one is another one of them.
enum class Crossing : std::uint8_t { kNone, kSum, kSplit, kGather, kScatterSum };

// The group, as a node of the graph sees it.
struct Ranks {
  int rank;
  int size;
  TensorCollective& tensors;
};

at::Tensor joined(const at::Tensor& part, std::int64_t dim, const Ranks& ranks) {
  const at::Tensor mine = part.contiguous();
  auto sizes = mine.sizes().vec();
  sizes[0] *= ranks.size;
  const at::Tensor rows = at::empty(sizes, mine.options());
  auto work = ranks.tensors.launch_all_gather(rows, mine, "a split layer");
  ranks.tensors.wait(work);
  return dim == 0 ? rows : at::cat(rows.chunk(ranks.size), dim);
}

// Each rank's part becomes a row: so DTensor has them, and its sums have this order.
at::Tensor scattered_sum(const at::Tensor& term, std::int64_t dim, const Ranks& ranks) {
  const at::Tensor rows = dim == 0 ? term.contiguous() : at::cat(term.chunk(ranks.size, dim));
  return ranks.tensors.reduce_scatter(rows, Reduction::kSum, "a split layer");
}

at::Tensor cross(const at::Tensor& tensor, Crossing crossing, std::int64_t dim,
                 const Ranks& ranks) {
  switch (crossing) {
    case Crossing::kNone:
      return tensor;
    case Crossing::kSum: {
      at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
      ranks.tensors.all_reduce(sum, Reduction::kSum, "a split layer");
      return sum;
    }
    case Crossing::kSplit:
      return tensor.chunk(ranks.size, dim)[static_cast<std::size_t>(ranks.rank)].contiguous();
    case Crossing::kGather:
      return joined(tensor, dim, ranks);
    case Crossing::kScatterSum:
      return scattered_sum(tensor, dim, ranks);
  }
  return tensor;
}

// A crossing, and that of the gradient.
struct Ways {
  Crossing forward;
  Crossing backward;
  std::int64_t dim = 0;  // from 0
};

class Cross : public torch::autograd::Function<Cross> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const Ways& ways,
                            const Ranks& ranks, const std::shared_ptr<TensorCollective>& tensors) {
    worker::hold(*context, tensors);
    context->saved_data["backward"] = static_cast<std::int64_t>(ways.backward);
    context->saved_data["dim"] = ways.dim;
    context->saved_data["rank"] = ranks.rank;
    context->saved_data["size"] = ranks.size;
    return cross(tensor, ways.forward, ways.dim, ranks);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    worker::refuse_second_gradient("TensorGroup");
    const auto number = [&](const char* key) { return context->saved_data[key].toInt(); };
    const Ranks ranks{static_cast<int>(number("rank")), static_cast<int>(number("size")),
                      worker::held_by(*context)};
    variable_list results(4);
    results[0] =
        cross(gradients[0], static_cast<Crossing>(number("backward")), number("dim"), ranks);
    return results;
  }
};

at::Tensor apply(const at::Tensor& tensor, const Ways& ways, const TensorGroup& group,
                 const std::shared_ptr<TensorCollective>& tensors) {
  if (group.size() == 1) return tensor;
  return Cross::apply(tensor, ways, Ranks{group.rank(), group.size(), *tensors}, tensors);
}

// A dimension from 0, which the group divides.
std::int64_t divided_dim(const at::Tensor& tensor, std::int64_t dim, const TensorGroup& group) {
  const std::int64_t from_0 = dim < 0 ? dim + tensor.dim() : dim;
  worker::require(from_0 >= 0 && from_0 < tensor.dim(),
                  "TensorGroup: dimension {} given, expected one of the tensor's {}", dim,
                  tensor.dim());
  worker::require_divided("TensorGroup", "a dimension of size", tensor.size(from_0), group);
  return from_0;
}

std::int64_t dim_from_0(const at::Tensor& tensor, std::int64_t dim) {
  return dim < 0 ? dim + tensor.dim() : dim;
}

}  // namespace

TensorGroup::TensorGroup(Collective& ranks, std::optional<std::int64_t> sequence_dim)
    : ranks_(&ranks),
      tensors_(std::make_shared<TensorCollective>(ranks)),
      sequence_dim_(sequence_dim) {}

at::Tensor TensorGroup::copy(const at::Tensor& whole) const {
  return apply(whole, {Crossing::kNone, Crossing::kSum}, *this, tensors_);
}

at::Tensor TensorGroup::sum(const at::Tensor& term) const {
  return apply(term, {Crossing::kSum, Crossing::kNone}, *this, tensors_);
}

at::Tensor TensorGroup::split(const at::Tensor& whole, std::int64_t dim) const {
  return apply(whole, {Crossing::kSplit, Crossing::kGather, divided_dim(whole, dim, *this)}, *this,
               tensors_);
}

at::Tensor TensorGroup::gather(const at::Tensor& part, std::int64_t dim) const {
  return apply(part, {Crossing::kGather, Crossing::kSplit, dim_from_0(part, dim)}, *this, tensors_);
}

at::Tensor TensorGroup::gather_copy(const at::Tensor& part, std::int64_t dim) const {
  return apply(part, {Crossing::kGather, Crossing::kScatterSum, dim_from_0(part, dim)}, *this,
               tensors_);
}

at::Tensor TensorGroup::scatter_sum(const at::Tensor& term, std::int64_t dim) const {
  return apply(term, {Crossing::kScatterSum, Crossing::kGather, divided_dim(term, dim, *this)},
               *this, tensors_);
}

at::Tensor TensorGroup::enter(const at::Tensor& tensor) const {
  return sequence_dim_ ? gather_copy(tensor, *sequence_dim_) : copy(tensor);
}

at::Tensor TensorGroup::leave(const at::Tensor& term) const {
  return sequence_dim_ ? scatter_sum(term, *sequence_dim_) : sum(term);
}

void TensorGroup::share(const at::Tensor& tensor) const {
  if (size() > 1) tensors_->broadcast(tensor, 0, "tensor share");
}

}  // namespace ddprun
