#include "worker/training/data_parallel/bucket_layout.h"

#include <ddprun/log_record.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>
#include <vector>

namespace ddprun::worker {

void BucketLayout::begin_pass() {
  hook_order_.clear();
  forget();
}

void BucketLayout::all_ready(std::size_t parameters) {
  if (rebuilt_) return;
  ready_order_.resize(parameters);
  std::iota(ready_order_.begin(), ready_order_.end(), std::size_t{0});
}

void BucketLayout::forget() { ready_order_.clear(); }

std::vector<std::size_t> BucketLayout::whole_order(std::size_t parameters) const {
  std::vector<std::size_t> order = ready_order_;
  std::vector<bool> ordered(parameters, false);
  for (const std::size_t parameter : order) ordered.at(parameter) = true;
  for (std::size_t i = 0; i < parameters; ++i) {
    if (!ordered[i]) order.push_back(i);
  }
  return order;
}

void BucketLayout::set_rebuilt() {
  rebuilt_ = true;
  ready_order_.clear();
}

void BucketLayout::write(LogRecord& record, const BucketPlan& plan,
                         std::span<const ParameterSize> sizes) const {
  const auto bytes_of = [&](const std::vector<std::size_t>& bucket) {
    std::size_t bytes = 0;
    for (const std::size_t parameter : bucket) bytes += sizes[parameter].bytes;
    return bytes;
  };
  const auto sizes_of = [&](const BucketPlan& of) {
    std::vector<std::size_t> bytes;
    bytes.reserve(of.size());
    for (const auto& bucket : of) bytes.push_back(bytes_of(bucket));
    return fmt::format("{}", fmt::join(bytes, ", "));
  };
  std::vector<std::string> indices;
  indices.reserve(plan.size());
  for (const auto& bucket : plan) indices.push_back(fmt::format("{}", fmt::join(bucket, " ")));
  record.texts["bucket_sizes"] = sizes_of(first_);
  record.texts["rebuilt_bucket_sizes"] = rebuilt_ ? sizes_of(plan) : "";
  record.texts["rebuilt_per_bucket_param_indices"] =
      rebuilt_ ? fmt::format("{}", fmt::join(indices, ", ")) : "";
  record.texts["prev_iteration_grad_ready_order_indices"] =
      fmt::format("{}", fmt::join(hook_order_, ", "));
  record.numbers["has_rebuilt_buckets"] = rebuilt_ ? 1 : 0;
}

}  // namespace ddprun::worker
