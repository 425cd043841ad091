// What a GradientReducer says of itself: in the log record, and in messages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "worker/reducer/gradient_reducer.h"

namespace ddprun::worker {
namespace {

// A message names so many parameters, then says how many more there are. Models have thousands.
constexpr std::size_t kNamedInMessageMax = 10;

}  // namespace

void GradientReducer::write(LogRecord& record) const {
  const auto bytes_of = [this](const std::vector<std::size_t>& bucket) {
    std::size_t bytes = 0;
    for (const std::size_t parameter : bucket) bytes += buckets_.sizes()[parameter].bytes;
    return bytes;
  };
  const auto sizes = [&](const BucketPlan& plan) {
    return fmt::format("{}", fmt::join(plan | std::views::transform(bytes_of), ", "));
  };
  std::vector<std::string> indices;
  for (const auto& bucket : plan()) indices.push_back(fmt::format("{}", fmt::join(bucket, " ")));
  record.texts["bucket_sizes"] = sizes(first_plan_);
  record.texts["rebuilt_bucket_sizes"] = rebuilt_ ? sizes(plan()) : "";
  record.texts["rebuilt_per_bucket_param_indices"] =
      rebuilt_ ? fmt::format("{}", fmt::join(indices, ", ")) : "";
  record.texts["prev_iteration_grad_ready_order_indices"] =
      fmt::format("{}", fmt::join(gradient_order_, ", "));
  record.texts["comm_hook"] = sums_.has_hook() ? "custom" : "";
  record.numbers["can_set_static_graph"] = readiness_->unchanged() ? 1 : 0;
  record.numbers["iteration"] = static_cast<std::int64_t>(pass_);
  record.numbers["has_rebuilt_buckets"] = rebuilt_ ? 1 : 0;
  record.numbers["num_buckets_reduced"] = static_cast<std::int64_t>(sums_.launched());
  const auto unused = readiness_->unused();
  record.numbers["unused_parameter_size"] =
      static_cast<std::int64_t>(bytes_of({unused.begin(), unused.end()}));
  const auto why = why_unfinished();
  record.numbers["has_error"] = why ? 1 : 0;
  record.texts["error"] = why.value_or("");
  times_.write(record);
}

std::vector<NamedParameter> GradientReducer::named(const GradientBuckets& buckets) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, tensor] : buckets.parameters()) parameters.push_back({name, tensor});
  return parameters;
}

std::string GradientReducer::describe(const std::vector<std::size_t>& parameters) const {
  std::string text;
  const std::size_t named = std::min(parameters.size(), kNamedInMessageMax);
  for (std::size_t i = 0; i < named; ++i) {
    text += fmt::format("{}{} ('{}')", i == 0 ? "" : ", ", parameters[i],
                        buckets_.parameters()[parameters[i]].name);
  }
  if (named < parameters.size()) text += fmt::format(" and {} more", parameters.size() - named);
  return text;
}

}  // namespace ddprun::worker
