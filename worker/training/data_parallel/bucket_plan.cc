#include "worker/training/data_parallel/bucket_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/assert.h"

namespace ddprun::worker {
namespace {

// The bucket of one kind that is being filled, and how many of this kind are full.
struct OpenBucket {
  std::vector<std::size_t> indices;
  std::size_t bytes = 0;
  std::size_t closed = 0;  // buckets of this kind that are full
};

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

constexpr std::array kNoLimit{std::numeric_limits<std::size_t>::max()};

// Returns the bytes of a parameter in its bucket.
std::size_t bucket_bytes(const ParameterSize& parameter) {
  return parameter.sparse ? 0 : parameter.bytes;
}

// Returns whether the plan has each parameter once. A plan from another rank is checked by this. A
// missing index would leave a gradient unsummed. One out of range would reach beyond our vectors.
bool is_permutation_of_indices(const BucketPlan& plan, std::size_t parameter_count) {
  std::vector<bool> seen(parameter_count, false);
  std::size_t count = 0;
  for (const auto& bucket : plan) {
    for (const std::size_t index : bucket) {
      if (index >= parameter_count || seen[index]) return false;
      seen[index] = true;
      ++count;
    }
  }
  return count == parameter_count;
}

// Adds the buckets of those parameters that are delayed, or of those that are not.
void add_buckets(BucketPlan& plan, std::span<const ParameterSize> parameters,
                 std::span<const std::size_t> ready_order, std::span<const std::size_t> limits,
                 bool delayed) {
  // Its order is part of the plan (bucket_plan.h). A kind is a hash already, and is taken as it is.
  std::unordered_map<std::size_t, OpenBucket> open;
  for (const std::size_t index : ready_order) {
    if (parameters[index].delayed != delayed) continue;
    if (parameters[index].sparse) {
      plan.push_back({index});
      continue;
    }
    OpenBucket& bucket = open[parameters[index].kind];
    bucket.indices.push_back(index);
    bucket.bytes += parameters[index].bytes;
    // As in PyTorch, the parameter that reaches the limit still belongs to this bucket.
    if (bucket.bytes < limits[std::min(bucket.closed, limits.size() - 1)]) continue;
    plan.push_back(std::exchange(bucket.indices, {}));
    bucket.bytes = 0;
    ++bucket.closed;
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.indices.empty()) plan.push_back(std::move(bucket.indices));
  }
}

}  // namespace

BucketPlan plan_first_buckets(std::span<const ParameterSize> parameters,
                              std::span<const std::size_t> limits) {
  std::vector<std::size_t> registration_order(parameters.size());
  std::iota(registration_order.begin(), registration_order.end(), std::size_t{0});
  BucketPlan plan =
      plan_ready_buckets(parameters, registration_order,
                         limits.empty() ? std::span<const std::size_t>(kNoLimit) : limits);
  // By the lowest index, which comes first in its bucket. The list is reversed, as gradients come
  // backwards. Inside a bucket PyTorch keeps the order of registration, and so do we.
  std::ranges::sort(plan, std::ranges::greater{}, [&parameters](const auto& bucket) {
    return std::pair(!parameters[bucket.front()].delayed, bucket.front());
  });
  return plan;
}

BucketPlan plan_ready_buckets(std::span<const ParameterSize> parameters,
                              std::span<const std::size_t> ready_order,
                              std::span<const std::size_t> limits) {
  DDPRUN_ASSERT(!limits.empty());
  DDPRUN_ASSERT(ready_order.size() == parameters.size());
  BucketPlan plan;
  add_buckets(plan, parameters, ready_order, limits, false);
  add_buckets(plan, parameters, ready_order, kNoLimit, true);
  return plan;
}

BucketPlan plan_ready_buckets_backwards(std::span<const ParameterSize> parameters,
                                        std::span<const std::size_t> ready_order,
                                        std::span<const std::size_t> limits) {
  DDPRUN_ASSERT(!limits.empty());
  DDPRUN_ASSERT(ready_order.size() == parameters.size());
  const std::vector<std::size_t> backwards(ready_order.rbegin(), ready_order.rend());
  BucketPlan plan;
  add_buckets(plan, parameters, backwards, limits, false);
  std::ranges::reverse(plan);
  add_buckets(plan, parameters, ready_order, kNoLimit, true);
  return plan;
}

BucketOffsets lay_out(std::span<const ParameterSize> parameters, const BucketPlan& plan) {
  BucketOffsets layout;
  layout.offsets.reserve(plan.size());
  std::map<std::size_t, std::size_t> ends;  // by device
  for (const auto& bucket : plan) {
    std::size_t& end = ends[parameters[bucket.front()].device];
    layout.offsets.push_back(end);
    std::size_t bytes = 0;
    for (const std::size_t index : bucket) bytes += bucket_bytes(parameters[index]);
    end += round_up(bytes, kBucketAlignBytes);
    layout.total_bytes += round_up(bytes, kBucketAlignBytes);
  }
  return layout;
}

// It counts as if each parameter had a bucket of its own. No plan has more padding.
std::size_t layout_bytes_max(std::span<const ParameterSize> parameters, std::size_t device) {
  std::size_t bytes = 0;
  for (const ParameterSize& parameter : parameters) {
    if (parameter.device == device) bytes += round_up(bucket_bytes(parameter), kBucketAlignBytes);
  }
  return bytes;
}

std::vector<std::int32_t> to_numbers(const BucketPlan& plan) {
  std::vector<std::int32_t> numbers{static_cast<std::int32_t>(plan.size())};
  for (const auto& bucket : plan) {
    numbers.push_back(static_cast<std::int32_t>(bucket.size()));
    for (const std::size_t index : bucket) numbers.push_back(static_cast<std::int32_t>(index));
  }
  return numbers;
}

BucketPlan from_numbers(std::span<const std::int32_t> numbers, std::size_t parameter_count) {
  BucketPlan plan;
  if (numbers.empty()) return plan;
  auto rest = numbers.subspan(1);
  while (!rest.empty()) {
    const std::int32_t size = rest.front();
    rest = rest.subspan(1);
    if (size < 1 || static_cast<std::size_t>(size) > rest.size()) return {};
    // A negative index becomes a number far above parameter_count, and is refused below.
    auto& bucket = plan.emplace_back();
    for (const std::int32_t index : rest.first(static_cast<std::size_t>(size))) {
      bucket.push_back(static_cast<std::size_t>(index));
    }
    rest = rest.subspan(static_cast<std::size_t>(size));
  }
  const bool whole = static_cast<std::size_t>(numbers.front()) == plan.size();
  return whole && is_permutation_of_indices(plan, parameter_count) ? plan : BucketPlan{};
}

bool may_share_buckets(std::span<const ParameterSize> parameters, const BucketPlan& plan) {
  for (const auto& bucket : plan) {
    const ParameterSize& first = parameters[bucket.front()];
    if (first.sparse && bucket.size() > 1) return false;
    for (const std::size_t index : bucket) {
      const ParameterSize& other = parameters[index];
      if (other.kind != first.kind || other.sparse != first.sparse) return false;
    }
  }
  return true;
}

}  // namespace ddprun::worker
