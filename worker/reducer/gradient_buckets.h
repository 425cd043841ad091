// The memory of the gradients: flat buckets in the collective's memory, and for each parameter a
// tensor that lies in its bucket. Fills buckets with PyTorch 2.11's arithmetic
// (mark_variable_ready_dense in torch/csrc/distributed/c10d/reducer.cpp) and gives gradients back.
// Launches nothing. Views are made by from_blob, not by slicing: Optimizer::zero_grad() calls
// detach_(), which throws on autograd views. They keep the memory alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "worker/collective/collective.h"
#include "worker/reducer/bucket_plan.h"
#include "worker/reducer/module_state.h"

namespace ddprun::worker {

enum class GradientMode {
  kView,  // `.grad` lies in the bucket
  kCopy,  // `.grad` is the user's; copied into the bucket and back
};

class GradientBuckets {
 public:
  // Collective: takes memory for any plan of these parameters, and carves it by the first plan.
  GradientBuckets(std::vector<NamedTensor> parameters, Collective& collective, GradientMode mode);

  // Carves the same memory anew. Gradients that are there are kept: in view mode they move into the
  // new buckets.
  void carve(BucketPlan plan);

  // Puts parameter's `.grad`, divided by the number of ranks, into its bucket: multiplied by
  // float(1/ranks) while copying, or divided in place where it lies there already. The two differ
  // in the last bit unless ranks is a power of two. No gradient: zeros. Throws where the gradient
  // is sparse or of another dtype than its parameter.
  void fill(std::size_t parameter, int ranks);

  // After bucket's sum is complete: makes `.grad` of its parameters hold the result.
  void give_back(std::size_t bucket);

  const BucketPlan& plan() const { return plan_; }
  Flat flat(std::size_t bucket) const { return flats_.at(bucket); }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<ParameterSize>& sizes() const { return sizes_; }

 private:
  void adopt_gradients();
  at::Tensor make_view(const at::Tensor& parameter, std::byte* memory) const;
  bool lies_in_bucket(std::size_t parameter, const at::Tensor& gradient) const;
  void check_layout(std::size_t parameter, const at::Tensor& gradient);

  std::vector<NamedTensor> parameters_;
  std::vector<ParameterSize> sizes_;
  GradientMode mode_;
  std::shared_ptr<std::byte> memory_;
  BucketPlan plan_;
  std::vector<Flat> flats_;        // by bucket
  std::vector<at::Tensor> views_;  // by parameter
  bool warned_of_strides_ = false;
};

}  // namespace ddprun::worker
