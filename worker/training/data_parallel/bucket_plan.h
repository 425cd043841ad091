// Assigns the gradient of each parameter to a bucket, and to a byte of it. The assignment is
// PyTorch 2.11's (compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp). We
// need the same buckets for the same bits. The order of a ring sum depends on where a gradient lies
// in its bucket. Pure arithmetic: no tensors, no memory, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun::worker {

// The parameter indices of each bucket, in launch order. Indices count the parameters that need a
// gradient, in registration order. A parameter that two modules share counts once.
using BucketPlan = std::vector<std::vector<std::size_t>>;

struct ParameterSize {
  std::size_t bytes = 0;
  // Equal for parameters that may share a bucket: same dtype and device. PyTorch's hash of the two,
  // so that what is left open comes in its order.
  std::size_t kind = 0;
  bool sparse = false;   // its gradients are sparse: it has a bucket of its own, with no memory
  bool delayed = false;  // it travels after all that are not
  // The place of its device among those of the model. Parameters of one kind have one.
  std::size_t device = 0;
};

// The plan for the first pass, when nobody knows yet in which order gradients become ready. It
// fills buckets in registration order, with limits as below; without limits there is one bucket per
// kind. Gradients become ready roughly from the last parameter to the first. So the bucket whose
// lowest index is highest comes first; those of delayed parameters come last.
BucketPlan plan_first_buckets(std::span<const ParameterSize> parameters,
                              std::span<const std::size_t> limits = {});

// The plan for all later passes: it fills buckets in the order in which gradients became ready. The
// i-th bucket of a kind closes when it holds limits[i] bytes or more; the last limit repeats. So a
// bucket may pass its limit by one parameter. Buckets are in the order in which they closed; that
// of a sparse parameter closes at once. Those that are still open at the end follow. Their order is
// that of a std::unordered_map of GNU's libstdc++ by kind, as PyTorch has it. Then the delayed
// parameters fill one bucket per kind. `ready_order` must hold each index of `parameters` once;
// `limits` must not be empty.
BucketPlan plan_ready_buckets(std::span<const ParameterSize> parameters,
                              std::span<const std::size_t> ready_order,
                              std::span<const std::size_t> limits);

// The same, but the limits count from the last bucket. With a small first limit the last bucket is
// the small one, whose sum nothing can hide. So PyTorch does with DDP_SET_LAST_BUCKET_CAP=1: it
// fills buckets in the reverse of `ready_order`, and reverses their list. Inside a bucket the
// reverse order stays.
BucketPlan plan_ready_buckets_backwards(std::span<const ParameterSize> parameters,
                                        std::span<const std::size_t> ready_order,
                                        std::span<const std::size_t> limits);

// Returns whether each bucket holds parameters of one kind, and a sparse one has a bucket of its
// own. It is for a plan that this code has not made.
bool may_share_buckets(std::span<const ParameterSize> parameters, const BucketPlan& plan);

// The byte offset of each bucket in the memory of its device, and the bytes of all buckets.
struct BucketOffsets {
  std::vector<std::size_t> offsets;
  std::size_t total_bytes = 0;
};

// Buckets start at multiples of this. The hardware fetches cache lines in pairs: no two buckets
// share a pair.
inline constexpr std::size_t kBucketAlignBytes = 128;

// Puts the buckets of a device one after another; inside a bucket, parameters follow each other
// without gaps. A sparse parameter takes no bytes.
BucketOffsets lay_out(std::span<const ParameterSize> parameters, const BucketPlan& plan);

// Bytes into which the buckets of a device fit, in every plan: memory is allocated once.
std::size_t layout_bytes_max(std::span<const ParameterSize> parameters, std::size_t device = 0);

// A plan as numbers, to send it to the other ranks. It has the count of buckets, then for each
// bucket its size and its indices.
std::vector<std::int32_t> to_numbers(const BucketPlan& plan);

// The plan from the numbers. Empty if they are not a plan that holds each index below
// `parameter_count` once.
BucketPlan from_numbers(std::span<const std::int32_t> numbers, std::size_t parameter_count);

}  // namespace ddprun::worker
