#include "worker/training/data_parallel/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/hash.h>
#include <ddprun/data_parallel.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/wrapped_number.h"

namespace ddprun::worker {
namespace {

std::vector<ParameterSize> sizes_of(const std::vector<NamedTensor>& parameters,
                                    const std::vector<bool>& sparse,
                                    const std::vector<bool>& delayed) {
  std::vector<ParameterSize> sizes;
  sizes.reserve(parameters.size());
  const std::vector<std::size_t> places = device_places(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    sizes.push_back({.bytes = tensor.nbytes(),
                     .kind = c10::get_hash(tensor.scalar_type(), tensor.device()),
                     .sparse = sparse.at(i),
                     .delayed = delayed.at(i),
                     .device = places[i]});
  }
  return sizes;
}

void require_dense(const std::string& name, const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) return;
  throw std::runtime_error(
      fmt::format("the gradient of parameter '{}' is sparse, and its module is no Embedding and no "
                  "EmbeddingBag "
                  "with sparse=true: name it in DataParallelOptions::sparse_parameters",
                  name));
}

void require_sparse(const std::string& name, const at::Tensor& gradient) {
  if (gradient.layout() == at::kSparse) return;
  throw std::runtime_error(
      fmt::format("Expected variable to have sparse gradient. The gradient of parameter '{}' is "
                  "dense, and its module says sparse=true, or sparse_parameters names it",
                  name));
}

// A gradient of an embedding that nobody looked up: its rows are indexed.
at::Tensor no_rows_of(const at::Tensor& parameter) {
  auto sizes = parameter.sizes().vec();
  sizes.front() = 0;
  const at::TensorOptions options = parameter.options().requires_grad(false);
  return at::sparse_coo_tensor(at::empty({1, 0}, options.dtype(at::kLong)),
                               at::empty(sizes, options), parameter.sizes());
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<NamedTensor> parameters, const Marks& marks,
                                 const DeviceCollectives& collectives, GradientMode mode,
                                 std::span<const std::size_t> first_limits_bytes)
    : parameters_(std::move(parameters)),
      sizes_(sizes_of(parameters_, marks.sparse, marks.delayed)),
      mode_(mode) {
  if (!stay()) allocate(collectives);
  carve(plan_first_buckets(sizes_, first_limits_bytes));
}

void GradientBuckets::allocate(const DeviceCollectives& collectives) {
  for (std::size_t device = 0; device < collectives.count(); ++device)
    memory_.push_back(collectives.at(device).allocate(layout_bytes_max(sizes_, device)));
}

void GradientBuckets::carve(BucketPlan plan) {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    // Its place will belong to another parameter: keep the values elsewhere meanwhile.
    if (gradient.defined() && lies_in_bucket(i, gradient)) gradient = gradient.clone();
  }
  plan_ = std::move(plan);
  views_.resize(parameters_.size());
  if (stay()) return;
  const BucketOffsets layout = lay_out(sizes_, plan_);
  flats_.clear();
  for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    std::byte* const start = memory_[device(bucket)].get() + layout.offsets[bucket];
    std::byte* next = start;
    if (sparse(bucket)) {
      flats_.emplace_back();
      continue;
    }
    for (const std::size_t index : plan_[bucket]) {
      views_[index] = make_view(index, next);
      next += sizes_[index].bytes;
    }
    // A bucket has one kind, so its first parameter speaks for all.
    const Dtype dtype = *summable(parameters_[plan_[bucket].front()].tensor.scalar_type());
    flats_.push_back({start, static_cast<std::size_t>(next - start) / size_of(dtype), dtype});
  }
  if (mode_ == GradientMode::kView) adopt_gradients();
}

void GradientBuckets::use_buckets(GradientMode mode, const DeviceCollectives& collectives) {
  if (!stay()) return;
  mode_ = mode;
  allocate(collectives);
  carve(std::move(plan_));
}

// Moves the gradients that are there into their buckets, as PyTorch does at this moment. From then
// on fill() divides them and does not multiply them. Moving them later would change last bits.
void GradientBuckets::adopt_gradients() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined() || sizes_[i].sparse) continue;
    require_dense(parameters_[i].name, gradient);
    views_[i].copy_(gradient);
    gradient = views_[i];
  }
}

// The strides are those that autograd gives to gradients (torch/csrc/autograd/functions/
// accumulate_grad.h, "Gradient Layout Contract"). They are the parameter's own if it is dense, else
// those of a contiguous tensor. With other strides each copy into the view would be slow.
at::Tensor GradientBuckets::make_view(std::size_t index, std::byte* memory) const {
  const at::Tensor& parameter = parameters_[index].tensor;
  const auto keep_alive = [held = memory_[sizes_[index].device]](void* /*view*/) {};
  const at::TensorOptions options = parameter.options().requires_grad(false);
  if (parameter.is_non_overlapping_and_dense()) {
    return at::from_blob(memory, parameter.sizes(), parameter.strides(), keep_alive, options);
  }
  return at::from_blob(memory, parameter.sizes(), keep_alive, options);
}

at::Tensor GradientBuckets::buffer(std::size_t bucket) const {
  const at::Tensor& first = parameters_[plan_.at(bucket).front()].tensor;
  const Flat& flat = flats_[bucket];
  const auto keep_alive = [held = memory_[device(bucket)]](void* /*buffer*/) {};
  return at::from_blob(
      flat.data, {static_cast<std::int64_t>(flat.count)}, keep_alive,
      first.options().dtype(c10::toRealValueType(first.scalar_type())).requires_grad(false));
}

// A sparse tensor has no storage that could be compared, so its layout is asked first.
bool GradientBuckets::lies_in_bucket(std::size_t parameter, const at::Tensor& gradient) const {
  return gradient.layout() == at::kStrided && views_[parameter].defined() &&
         !sizes_[parameter].sparse && gradient.is_alias_of(views_[parameter]);
}

void GradientBuckets::check_layout(std::size_t parameter, const at::Tensor& gradient) const {
  const auto& [name, tensor] = parameters_[parameter];
  require_dense(name, gradient);
  if (gradient.scalar_type() != tensor.scalar_type() || gradient.numel() != tensor.numel()) {
    throw std::runtime_error(
        fmt::format("the gradient of parameter '{}' has another dtype or size than it", name));
  }
}

// Other strides are only slow: PyTorch warns of them once, in these words, and so do we.
void GradientBuckets::warn_of_strides(std::size_t parameter, const at::Tensor& gradient) {
  if (gradient.strides() == views_[parameter].strides() || std::exchange(warned_of_strides_, true))
    return;
  log::warning(fmt::format(
      "Grad strides do not match bucket view strides. First seen at parameter '{}'; this costs "
      "speed, not correctness.",
      parameters_[parameter].name));
}

// The words are PyTorch's, the end is ours.
void GradientBuckets::warn_of_graph(std::size_t parameter, const at::Tensor& gradient) {
  if (!gradient.requires_grad() || std::exchange(warned_of_graph_, true)) return;
  log::warning(fmt::format(
      "Using DistributedDataParallel with create_graph=True is not well-supported. The "
      "higher-order "
      "gradient will not be synchronized across ranks. First seen at parameter '{}': its .grad has "
      "the average of all ranks, and no graph.",
      parameters_[parameter].name));
}

// As PyTorch's mark_variable_ready_sparse, but not in place. The values may be those of the
// gradient that goes on to other layers. A missing gradient counts as one without values.
void GradientBuckets::fill_sparse(std::size_t parameter, int ranks) {
  const at::Tensor& tensor = parameters_.at(parameter).tensor;
  const at::Tensor& gradient = tensor.grad();
  if (!gradient.defined()) {
    views_[parameter] = no_rows_of(tensor);
    return;
  }
  require_sparse(parameters_[parameter].name, gradient);
  views_[parameter] = ranks > 1 ? gradient.div(ranks) : gradient;
}

// Checks a gradient that stays.
void GradientBuckets::keep(std::size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) return;
  check_layout(parameter, gradient);
  warn_of_graph(parameter, gradient);
  if (gradient.requires_grad()) gradient = gradient.detach();
}

void GradientBuckets::fill(std::size_t parameter, int ranks) {
  if (sizes_.at(parameter).sparse) return fill_sparse(parameter, ranks);
  if (stay()) return keep(parameter);
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  at::Tensor& view = views_[parameter];
  // The other ranks add this place to theirs: what the pass before has left here must not count.
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (lies_in_bucket(parameter, gradient)) {
    if (ranks > 1) view.div_(ranks);
    return;
  }
  check_layout(parameter, gradient);
  warn_of_strides(parameter, gradient);
  warn_of_graph(parameter, gradient);
  if (ranks > 1)
    at::mul_out(view, gradient.detach(), wrapped_number(1.0 / ranks));
  else
    view.copy_(gradient.detach());
  if (mode_ == GradientMode::kView) gradient = view;
}

// For a `.grad` where there was none.
at::Tensor GradientBuckets::result_of(std::size_t parameter) const {
  const at::Tensor& view = views_[parameter];
  if (mode_ == GradientMode::kView) return view;
  return view.defined() ? view.clone() : at::zeros_like(parameters_[parameter].tensor);
}

void GradientBuckets::give_back(std::size_t parameter) {
  at::Tensor& gradient = parameters_.at(parameter).tensor.mutable_grad();
  const at::Tensor& view = views_[parameter];
  if (!gradient.defined()) {
    // No gradient on this rank, but perhaps on others: all ranks must step alike.
    gradient = result_of(parameter);
  } else if (sizes_[parameter].sparse) {
    gradient.copy_(view);
  } else if (stay()) {
    return;
  } else if (mode_ == GradientMode::kCopy) {
    require_dense(parameters_[parameter].name, gradient);
    gradient.copy_(view);
  } else if (!lies_in_bucket(parameter, gradient)) {
    throw std::runtime_error(fmt::format(
        "Detected at least one parameter gradient is not the expected DDP bucket view with "
        "gradient_as_bucket_view=True. It is '{}': its .grad was replaced while backward() ran, "
        "perhaps by a hook. Set gradient_as_bucket_view to false, or leave .grad alone.",
        parameters_[parameter].name));
  }
}

}  // namespace ddprun::worker
