#include "worker/averages/same_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace ddprun::worker {
namespace {

// Steps that rounded in unlike ways differ by less than this part of themselves.
constexpr double kStepTolerance = 1e-3;
// They differ by so many roundings of the weight, too.
constexpr double kRoundings = 4;
// Weights that no step says anything of differ by less than this part of themselves.
constexpr double kWeightTolerance = 1e-3;

// Elements of memory: a complex number is two.
std::int64_t elements_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  if (!tensor.is_non_overlapping_and_dense()) return 1;
  return tensor.is_complex() ? 2 * tensor.numel() : tensor.numel();
}

double element(const at::Tensor& tensor, std::int64_t index) {
  const void* const data = tensor.const_data_ptr();
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kDouble:
      return static_cast<const double*>(data)[index];
    case at::kFloat:
      return static_cast<double>(static_cast<const float*>(data)[index]);
    case at::kHalf:
      return static_cast<double>(static_cast<const at::Half*>(data)[index]);
    case at::kBFloat16:
      return static_cast<double>(static_cast<const at::BFloat16*>(data)[index]);
    default:
      return 0;
  }
}

double rounding_of(const at::Tensor& tensor) {
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return static_cast<double>(std::numeric_limits<float>::epsilon());
  }
}

bool near(double left, double right, double distance) {
  return left == right || std::abs(left - right) <= distance ||
         (std::isnan(left) && std::isnan(right));
}

// Ranks tell it each other in each pass.
std::uint64_t hash_of(const WeightsReport& report) {
  std::uint64_t hash = 0xcbf29ce484222325U ^ report.steps;
  for (const double number : report.now)
    hash = (hash ^ std::bit_cast<std::uint64_t>(number)) * 0x100000001b3U;
  return hash;
}

std::vector<std::byte> to_bytes(const WeightsReport& report) {
  std::vector<double> numbers{static_cast<double>(report.steps),
                              static_cast<double>(report.forwards),
                              static_cast<double>(report.now.size())};
  numbers.insert(numbers.end(), report.now.begin(), report.now.end());
  numbers.insert(numbers.end(), report.before.begin(), report.before.end());
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

WeightsReport from_bytes(std::span<const std::byte> bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  if (numbers.size() < 3) throw CollectiveError("ranks disagree on what they do");
  WeightsReport report{.steps = static_cast<std::uint64_t>(numbers[0]),
                       .forwards = static_cast<std::uint64_t>(numbers[1]),
                       .now = {},
                       .before = {}};
  const auto rest = std::span(numbers).subspan(3);
  const auto count = std::min(static_cast<std::size_t>(numbers[2]), rest.size());
  report.now.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  report.before.assign(rest.begin() + static_cast<std::ptrdiff_t>(count), rest.end());
  return report;
}

// How two ranks have parted at one number; empty: they have not.
std::string difference(const WeightsReport& left, const WeightsReport& right, std::size_t at,
                       double rounding) {
  const double size = std::max(std::abs(left.now[at]), std::abs(right.now[at]));
  if (left.before.size() <= at || right.before.size() <= at) {
    if (near(left.now[at], right.now[at], kWeightTolerance * size)) return {};
    return fmt::format("is {:.9g}, and {:.9g}", left.now[at], right.now[at]);
  }
  const double step = left.now[at] - left.before[at];
  const double other = right.now[at] - right.before[at];
  const double allowed =
      kRoundings * rounding * size + kStepTolerance * std::max(std::abs(step), std::abs(other));
  if (near(step, other, allowed)) return {};
  return fmt::format("has changed by {:.6g}, and by {:.6g}", step, other);
}

// A forward() without a backward() shifts the passes of a rank against those of the others.
std::string left_out(const WeightsReport& first, const WeightsReport& other, std::size_t rank) {
  if (first.forwards == other.forwards) return {};
  const bool is_first = first.forwards > other.forwards;
  return fmt::format(
      " Meanwhile rank {} called parallel.forward() {} times and had one backward(): it has left "
      "out a backward(), or it forwards with gradients what nobody trains on. Call backward() on "
      "all ranks or on none, and evaluate under NoGradGuard.",
      is_first ? 0 : rank, std::max(first.forwards, other.forwards));
}

}  // namespace

std::optional<std::string> parted(const std::vector<WeightsReport>& reports,
                                  std::span<const WeightsPlace> places, std::uint64_t pass) {
  constexpr const char* kAdvice =
      "All ranks must make the same steps, on the same gradients, from the same weights. The "
      "weights have parted, so the job must start anew from a checkpoint";
  const WeightsReport& first = reports.front();
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    const WeightsReport& other = reports[rank];
    if (other.steps != first.steps) {
      return fmt::format(
          "before pass {} the ranks called step() unlike numbers of times: rank 0 {}, rank {} {}.{}"
          " {}",
          pass, first.steps, rank, other.steps, left_out(first, other, rank), kAdvice);
    }
    const std::size_t count = std::min({places.size(), first.now.size(), other.now.size()});
    for (std::size_t i = 0; i < count; ++i) {
      const std::string how = difference(first, other, i, places[i].rounding);
      if (how.empty()) continue;
      return fmt::format(
          "before pass {} the weights of rank 0 and rank {} became unlike: there a number of "
          "parameter '{}' {}. {}",
          pass, rank, places[i].name, how, kAdvice);
    }
  }
  return std::nullopt;
}

SameWeights::SameWeights(const std::vector<NamedParameter>& parameters, Collective& collective,
                         bool alike)
    : parameters_(parameters), collective_(collective) {
  if (collective_.world_size() == 1 || collective_.device() != Device::kCpu) return;
  const std::size_t stride = parameters_.size() / kNumbersMax + 1;
  const std::size_t taken = (parameters_.size() + stride - 1) / stride;
  const std::size_t each = std::clamp(kNumbersMax / taken, std::size_t{1}, kNumbersOfOneMax);
  for (std::size_t i = 0; i < parameters_.size(); i += stride) {
    const std::int64_t elements = elements_of(parameters_[i].tensor);
    const std::int64_t count = std::min(elements, static_cast<std::int64_t>(each));
    // In the middle of as many equal parts.
    for (std::int64_t k = 0; k < count; ++k)
      places_.push_back({i, (2 * k + 1) * elements / (2 * count)});
  }
  if (alike) before_ = read();
}

std::vector<double> SameWeights::read() const {
  std::vector<double> numbers;
  numbers.reserve(places_.size());
  for (const auto& [parameter, index] : places_) {
    const at::Tensor& tensor = parameters_[parameter].tensor;
    // Somebody may have given it other data since the forward().
    numbers.push_back(index < elements_of(tensor) ? element(tensor, index) : 0);
  }
  return numbers;
}

void SameWeights::start() {
  stopped_ = false;
  before_ = read();
}

std::string SameWeights::changed(const std::vector<double>& left,
                                 const std::vector<double>& right) const {
  for (std::size_t i = 0; i < std::min({left.size(), right.size(), places_.size()}); ++i)
    if (!near(left[i], right[i], 0)) return parameters_[places_[i].parameter].name;
  return {};
}

std::vector<WeightsReport> SameWeights::gather(const WeightsReport& mine) {
  std::vector<WeightsReport> reports;
  for (const auto& bytes : collective_.all_gather(to_bytes(mine)))
    reports.push_back(from_bytes(bytes));
  return reports;
}

std::optional<std::string> SameWeights::compare(std::uint64_t steps, std::uint64_t forwards,
                                                std::uint64_t pass) {
  if (places_.empty() || stopped_) return std::nullopt;
  WeightsReport mine{.steps = steps, .forwards = forwards, .now = std::move(now_), .before = {}};
  const std::array hash{hash_of(mine)};
  const auto all = collective_.all_gather(std::as_bytes(std::span(hash)));
  mine.before = std::exchange(before_, mine.now);
  if (std::ranges::all_of(all, [&](const auto& bytes) { return bytes == all.front(); }))
    return std::nullopt;
  std::vector<WeightsPlace> places;
  for (const auto& [parameter, index] : places_)
    places.push_back({parameters_[parameter].name, rounding_of(parameters_[parameter].tensor)});
  return parted(gather(mine), places, pass);
}

}  // namespace ddprun::worker
