// Which parameter's gradient travels in which bucket: PyTorch 2.11's greedy assignment
// (compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp). The order of a ring
// sum depends on where a gradient lies in its bucket, so equal bits need equal buckets. Pure: no
// tensors, no memory; laying out bytes included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun::worker {

// Parameter indices of each bucket, in launch order. Indices count the parameters that need a
// gradient, in registration order, shared ones once.
using BucketPlan = std::vector<std::vector<std::size_t>>;

struct ParameterSize {
  std::size_t bytes = 0;
  int kind = 0;  // equal for parameters that may share a bucket: same dtype and device
};

// One bucket a kind; the kind of the highest first parameter comes first, as gradients arrive
// roughly backwards. Used until the order in which gradients become ready is known.
BucketPlan plan_first_buckets(std::span<const ParameterSize> parameters);

// Buckets in the order in which gradients became ready. A bucket closes once it holds `limits[i]`
// bytes or more, where i counts the closed buckets of its kind and the last limit repeats; so it
// may pass its limit by one parameter. What stays open at the end follows, by first appearance.
// `ready_order` holds each index of `parameters` once.
BucketPlan plan_ready_buckets(std::span<const ParameterSize> parameters,
                              std::span<const std::size_t> ready_order,
                              std::span<const std::size_t> limits);

// Byte offsets of each bucket in one region of memory.
struct BucketLayout {
  std::vector<std::size_t> offsets;
  std::size_t total_bytes = 0;
};

// Buckets start at multiples of this: a cache line pair, so that no two buckets share one.
inline constexpr std::size_t kBucketAlignBytes = 128;

BucketLayout lay_out(std::span<const ParameterSize> parameters, const BucketPlan& plan);

// Bytes that any plan of these parameters fits into.
std::size_t layout_bytes_max(std::span<const ParameterSize> parameters);

// A plan as numbers and back, for telling it to the other ranks: bucket count, then each bucket's
// size and indices.
std::vector<std::int32_t> to_numbers(const BucketPlan& plan);

// Empty where the numbers are not a plan that holds each of `parameter_count` indices once.
BucketPlan from_numbers(std::span<const std::int32_t> numbers, std::size_t parameter_count);

}  // namespace ddprun::worker
