#include "worker/training/sharded/flat_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <ddprun/data_parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/wrapped_number.h"

namespace ddprun::worker {
namespace {

void check(const std::string& unit, const std::vector<NamedTensor>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    const auto refuse = [&, &name = name](const std::string& why) {
      throw std::invalid_argument(
          fmt::format("ShardedParallel: parameter '{}' of unit '{}' {}", name, unit, why));
    };
    if (tensor.device() != parameters.front().tensor.device())
      refuse("is on another device than the first one: a unit has one device");
    if (!summable(tensor.scalar_type()) || tensor.is_complex() || tensor.layout() != at::kStrided)
      refuse(fmt::format("has type {}: float, double, half and bfloat16 can be sharded",
                         c10::toString(tensor.scalar_type())));
    if (!tensor.requires_grad()) refuse("is frozen: all parameters of a unit are trained");
    if (tensor.scalar_type() != parameters.front().tensor.scalar_type())
      refuse("has another type than the first one: a unit has one type");
  }
}

std::vector<std::int64_t> counts_of(const std::vector<NamedTensor>& parameters) {
  std::vector<std::int64_t> counts;
  counts.reserve(parameters.size());
  for (const NamedTensor& parameter : parameters) counts.push_back(parameter.tensor.numel());
  return counts;
}

std::vector<std::int64_t> strides_in_row(const at::Tensor& parameter) {
  return (parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous())
      .strides()
      .vec();
}

}  // namespace

FlatUnit::FlatUnit(std::string name, std::vector<NamedTensor> parameters, int ranks)
    : name_(std::move(name)),
      parameters_((check(name_, parameters), std::move(parameters))),
      element_bytes_(parameters_.front().tensor.itemsize()),
      layout_(counts_of(parameters_), static_cast<std::int64_t>(kUnitAlignBytes / element_bytes_),
              ranks, parameters_.front().tensor.is_cuda()),
      storage_(c10::Storage::use_byte_size_t(), bytes(), at::DataPtr(nullptr, device()), nullptr,
               /*resizable=*/false),
      nothing_(at::empty({0}, parameters_.front().tensor.options().requires_grad(false))) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    sizes_.push_back(parameter.sizes().vec());
    strides_.push_back(strides_in_row(parameter.detach()));
    at::Tensor part = at::empty({0}, nothing_.options());
    part.set_(storage_, layout_.parameters()[i].begin, sizes_[i], strides_[i]);
    placed_parts_.push_back(std::move(part));
  }
}

std::vector<Part> FlatUnit::parts() const {
  std::vector<Part> parts;
  for (const FlatRange& shard : layout_.shards())
    parts.push_back({static_cast<int>(parts.size()), static_cast<std::size_t>(shard.begin),
                     static_cast<std::size_t>(shard.end)});
  return parts;
}

ShardedParameter FlatUnit::parameter_of(int rank, std::size_t i) const {
  const FlatRange shard = shard_of(rank);
  const FlatRange whole = layout_.parameters()[i];
  const std::int64_t begin = std::clamp(shard.begin, whole.begin, whole.end);
  const std::int64_t end = std::clamp(shard.end, begin, whole.end);
  return {.name = parameters_[i].name,
          .sizes = sizes_[i],
          .strides = strides_[i],
          .place = begin < end ? begin - shard.begin : 0,
          .begin = begin - whole.begin,
          .end = end - whole.begin};
}

at::Tensor FlatUnit::flat_in(std::byte* memory) const {
  return at::from_blob(memory, {layout_.length()}, nothing_.options());
}

at::Tensor FlatUnit::part_of(const at::Tensor& flat, std::size_t i) const {
  return flat.as_strided(sizes_[i], strides_[i],
                         flat.storage_offset() + layout_.parameters()[i].begin);
}

void FlatUnit::copy_values_to(const at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  for (const FlatRange& gap : layout_.gaps()) flat.narrow(0, gap.begin, gap.length()).zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    part_of(flat, i).copy_(parameters_[i].tensor);
}

// The factor is that of DataParallel's gradients: a number of Python's, which has the tensor's
// type.
void FlatUnit::move_gradients_to(const at::Tensor& flat, double factor) {
  const at::NoGradGuard no_grad;
  const at::Tensor number = wrapped_number(factor);
  for (const FlatRange& gap : layout_.gaps()) flat.narrow(0, gap.begin, gap.length()).zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    at::Tensor part = part_of(flat, i);
    if (!gradient.defined()) {
      part.zero_();
      continue;
    }
    if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
    at::mul_out(part, gradient, number);
    gradient.reset();
  }
}

void FlatUnit::move_gradients_to(const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  flat.zero_();
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    parts.push_back(part_of(flat, i));
    gradients.push_back(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
    gradient.reset();
  }
  if (parts.empty()) return;
  at::_foreach_copy_(parts, gradients);
  if (!device().is_cuda()) return;
  // They may be of another stream, whose next tensors would take their memory too early.
  const auto stream = c10::impl::VirtualGuardImpl(device().type()).getStream(device());
  for (const at::Tensor& gradient : gradients) gradient.record_stream(stream);
}

void FlatUnit::place(at::DataPtr memory) {
  storage_.set_data_ptr_noswap(std::move(memory));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].tensor.set_data(placed_parts_[i]);
  placed_ = true;
}

void FlatUnit::remove() {
  for (const NamedTensor& parameter : parameters_) parameter.tensor.set_data(nothing_);
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, device()));
  placed_ = false;
}

}  // namespace ddprun::worker
