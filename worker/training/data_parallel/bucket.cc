#include <ddprun/comm_hook.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "worker/training/tensors/bucket_name.h"
#include "worker/training/tensors/summable.h"

namespace ddprun {

using namespace worker;

Bucket::Bucket(std::size_t index, bool last, at::Tensor buffer, std::vector<at::Tensor> parameters,
               Collective& collective)
    : index_(index),
      last_(last),
      buffer_(std::move(buffer)),
      parameters_(std::move(parameters)),
      collective_(collective) {}

std::vector<at::Tensor> Bucket::gradients() const {
  std::vector<at::Tensor> views;
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters_) {
    auto sizes = parameter.sizes().vec();
    auto strides = parameter.strides().vec();
    if (parameter.is_complex()) {
      for (std::int64_t& stride : strides) stride *= 2;
      sizes.push_back(2);
      strides.push_back(1);
    }
    const std::int64_t numbers = parameter.numel() * (parameter.is_complex() ? 2 : 1);
    const at::Tensor part = buffer_.narrow(0, begin, numbers);
    begin += numbers;
    // In the bucket a gradient has its parameter's strides, if these leave no gaps.
    views.push_back(parameter.is_non_overlapping_and_dense() ? part.as_strided(sizes, strides)
                                                             : part.view(sizes));
  }
  return views;
}

void Bucket::sum(const at::Tensor& tensor, Reduction reduction) {
  if (!summable(tensor.scalar_type()) || !tensor.is_contiguous()) {
    throw std::invalid_argument(
        fmt::format("Bucket::sum: a contiguous tensor of a gradient's dtype is summed, not {}",
                    c10::toString(tensor.scalar_type())));
  }
  Flat flat = flat_of(tensor);
  flat.name = name_of_bucket(index_);
  sums_.push_back(collective_.launch(flat, reduction));
}

void Bucket::finish() {
  for (const Ticket sum : sums_) collective_.wait(sum);
  for (const auto& act : acts_) act();
}

}  // namespace ddprun
