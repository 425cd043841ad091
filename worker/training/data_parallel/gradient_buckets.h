// The memory of the gradients: flat buckets in memory from the collective. Each parameter has a
// view, which is a tensor that lies in its bucket. It fills buckets with PyTorch 2.11's arithmetic
// (mark_variable_ready_dense in torch/csrc/distributed/c10d/reducer.cpp) and gives gradients back.
// It launches no sums. GradientReducer owns it and calls it from the training thread and the
// autograd thread, never from both at once.
//
// A complex gradient is a row of pairs of numbers. A sparse one lies nowhere here: it stays in its
// `.grad`, and its bucket has no memory.
//
// Views are made by from_blob, not by slicing: Optimizer::zero_grad() calls detach_(), which throws
// on views that autograd knows. The views keep the memory alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "worker/training/data_parallel/bucket_plan.h"
#include "worker/training/data_parallel/device_collectives.h"
#include "worker/training/data_parallel/module_state.h"

namespace ddprun::worker {

enum class GradientMode {
  kView,  // `.grad` lies in the bucket
  kCopy,  // `.grad` is the user's: copied into the bucket, and the result is copied back
  // `.grad` is the user's and the result: the only rank sums nothing, and buckets have no memory
  kStay,
};

class GradientBuckets {
 public:
  // Both by parameter (ParameterSize).
  struct Marks {
    const std::vector<bool>& sparse;
    const std::vector<bool>& delayed;
  };

  // All ranks must call it. Allocates memory on each device, which holds any plan of these
  // parameters. Divides it by the first plan, whose buckets have these limits (plan_first_buckets).
  GradientBuckets(std::vector<NamedTensor> parameters, const Marks& marks,
                  const DeviceCollectives& collectives, GradientMode mode,
                  std::span<const std::size_t> first_limits_bytes);

  // Ends kStay: from now on gradients go through the buckets. These get memory of the collective
  // and, in view mode, the gradients that are there already. Before the first pass that is summed.
  // In another mode it does nothing.
  void use_buckets(GradientMode mode, const DeviceCollectives& collectives);

  // Divides the same memory by a new plan. Gradients keep their values; in view mode they move into
  // the new buckets.
  void carve(BucketPlan plan);

  // Puts the parameter's `.grad`, divided by `ranks`, into its bucket. A gradient that lies in the
  // bucket already is divided in place. Every other one is multiplied by 1/ranks while it is
  // copied. The last bit may differ from a division unless `ranks` is a power of two. Puts zeros if
  // there is no gradient. It keeps a divided copy of a sparse gradient, without values if there is
  // none. A gradient that stays is only checked. Throws std::runtime_error if the gradient is
  // sparse and the parameter is not, or the reverse. Also if its dtype or size is not the
  // parameter's.
  void fill(std::size_t parameter, int ranks);

  // Makes the parameter's `.grad` hold the result. Call only when its bucket's sum is complete.
  // Throws std::runtime_error in view mode if somebody replaced a `.grad` meanwhile.
  void give_back(std::size_t parameter);

  // Returns the parameter's part of the sum; afterwards the result. Undefined where it stays.
  at::Tensor& view(std::size_t parameter) { return views_.at(parameter); }

  // Returns whether dense gradients stay where they are, and no bucket has memory.
  bool stay() const { return mode_ == GradientMode::kStay; }
  // Returns whether this is the bucket of a sparse parameter.
  bool sparse(std::size_t bucket) const { return sizes_[plan_.at(bucket).front()].sparse; }

  // Returns the place of the bucket's device. All its parameters lie there.
  std::size_t device(std::size_t bucket) const { return sizes_[plan_.at(bucket).front()].device; }

  const BucketPlan& plan() const { return plan_; }
  Flat flat(std::size_t bucket) const { return flats_.at(bucket); }
  // The bucket's memory as one tensor in one dimension; complex values as pairs. Not for a sparse
  // one.
  at::Tensor buffer(std::size_t bucket) const;
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<ParameterSize>& sizes() const { return sizes_; }

 private:
  void adopt_gradients();
  void allocate(const DeviceCollectives& collectives);
  at::Tensor make_view(std::size_t index, std::byte* memory) const;
  bool lies_in_bucket(std::size_t parameter, const at::Tensor& gradient) const;
  void fill_sparse(std::size_t parameter, int ranks);
  void keep(std::size_t parameter);
  at::Tensor result_of(std::size_t parameter) const;
  void check_layout(std::size_t parameter, const at::Tensor& gradient) const;
  void warn_of_strides(std::size_t parameter, const at::Tensor& gradient);
  void warn_of_graph(std::size_t parameter, const at::Tensor& gradient);

  std::vector<NamedTensor> parameters_;
  std::vector<ParameterSize> sizes_;
  GradientMode mode_;
  std::vector<std::shared_ptr<std::byte>> memory_;  // by device
  BucketPlan plan_;
  std::vector<Flat> flats_;        // by bucket; none where gradients stay
  std::vector<at::Tensor> views_;  // by parameter; of a sparse one its share, then the sum
  bool warned_of_strides_ = false;
  bool warned_of_graph_ = false;
};

}  // namespace ddprun::worker
