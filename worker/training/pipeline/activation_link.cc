#include "worker/training/pipeline/activation_link.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/summable.h"

namespace ddprun::worker {
namespace {

constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                            at::kInt,   at::kLong,   at::kChar, at::kByte};

ActivationShape shape_of(const at::Tensor& activation) {
  const at::ScalarType type = activation.scalar_type();
  if (std::ranges::find(kTypes, type) == kTypes.end() || activation.layout() != at::kStrided)
    throw std::invalid_argument(
        fmt::format("Pipeline: activations of type {} given, expected dense ones of float32, "
                    "float64, float16, bfloat16 or integers of 8, 32 and 64 bits",
                    c10::toString(type)));
  return {.dtype = *reducible(type),
          .needs_gradient = activation.requires_grad(),
          .sizes = activation.sizes().vec()};
}

at::ScalarType type_of(Dtype dtype) {
  return *std::ranges::find_if(kTypes,
                               [&](at::ScalarType type) { return reducible(type) == dtype; });
}

// The name in the collective's messages.
OperationName name_of(const char* what, int micro_batch) {
  return fmt::format("{} {}", what, micro_batch);
}

}  // namespace

void ActivationLink::send(const at::Tensor& activation, int micro_batch) {
  const ActivationShape shape = shape_of(activation);
  if (!shape_) describe(shape);
  if (*shape_ != shape)
    throw std::invalid_argument(fmt::format(
        "Pipeline: stage {} returned {}{} for micro-batch {}, expected {}{} as for the first one",
        ranks_.rank(), text_of(shape), shape.needs_gradient ? "" : " without a gradient",
        micro_batch, text_of(*shape_), shape_->needs_gradient ? "" : " without a gradient"));
  tensors_.send(activation.detach(), peer_, name_of("activation", micro_batch));
}

at::Tensor ActivationLink::receive_gradient(int micro_batch) {
  return shape_->needs_gradient ? receive_like("gradient", micro_batch) : at::Tensor();
}

at::Tensor ActivationLink::receive(int micro_batch) {
  if (!shape_) shape_ = described();
  return receive_like("activation", micro_batch).requires_grad_(shape_->needs_gradient);
}

void ActivationLink::send_gradient(const at::Tensor& gradient, int micro_batch) {
  if (!shape_->needs_gradient) return;
  const auto options = at::dtype(type_of(shape_->dtype)).device(device_of(ranks_));
  tensors_.send(gradient.defined() ? gradient : at::zeros(shape_->sizes, options), peer_,
                name_of("gradient", micro_batch));
}

at::Tensor ActivationLink::receive_like(const char* what, int micro_batch) {
  const auto options = at::dtype(type_of(shape_->dtype)).device(device_of(ranks_));
  at::Tensor received = at::empty(shape_->sizes, options);
  tensors_.receive(received, peer_, name_of(what, micro_batch));
  return received;
}

void ActivationLink::describe(const ActivationShape& shape) {
  const ActivationWords words = to_words(shape);
  const at::Tensor told = at::empty({static_cast<std::int64_t>(words.size())}, at::kLong);
  std::ranges::copy(words, told.mutable_data_ptr<std::int64_t>());
  tensors_.send(told.to(device_of(ranks_)), peer_, "activation shape");
  shape_ = shape;
}

ActivationShape ActivationLink::described() {
  ActivationWords words{};
  const auto options = at::dtype(at::kLong).device(device_of(ranks_));
  const at::Tensor told = at::empty({static_cast<std::int64_t>(words.size())}, options);
  tensors_.receive(told, peer_, "activation shape");
  const at::Tensor here = told.cpu();
  std::copy_n(here.const_data_ptr<std::int64_t>(), words.size(), words.begin());
  return from_words(words);
}

}  // namespace ddprun::worker
