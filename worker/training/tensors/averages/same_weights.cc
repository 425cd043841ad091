#include "worker/training/tensors/averages/same_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/hash.h"

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

template <typename Number>
void read_elements(const void* data, std::span<const std::int64_t> elements,
                   std::vector<double>& numbers) {
  for (const std::int64_t element : elements)
    numbers.push_back(static_cast<double>(static_cast<const Number*>(data)[element]));
}

// Elements that are not there any more count as zeros. Somebody may have given the tensor other
// data since the forward().
void read_elements(const at::Tensor& tensor, std::span<const std::int64_t> elements,
                   std::vector<double>& numbers) {
  if (elements.back() >= elements_of(tensor)) {
    numbers.resize(numbers.size() + elements.size());
    return;
  }
  const void* const data = tensor.const_data_ptr();
  const at::ScalarType type = c10::toRealValueType(tensor.scalar_type());
  if (type == at::kDouble) return read_elements<double>(data, elements, numbers);
  if (type == at::kFloat) return read_elements<float>(data, elements, numbers);
  if (type == at::kHalf) return read_elements<at::Half>(data, elements, numbers);
  if (type == at::kBFloat16) return read_elements<at::BFloat16>(data, elements, numbers);
  numbers.resize(numbers.size() + elements.size());
}

double rounding_of(const at::Tensor& tensor) {
  const at::ScalarType type = c10::toRealValueType(tensor.scalar_type());
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kHalf) return 0x1p-10;
  if (type == at::kBFloat16) return 0x1p-7;
  return static_cast<double>(std::numeric_limits<float>::epsilon());
}

bool near(double left, double right, double distance) {
  return left == right || std::abs(left - right) <= distance ||
         (std::isnan(left) && std::isnan(right));
}

// Ranks tell it each other in each pass. Four numbers at once: a hash waits for each
// multiplication.
std::uint64_t hash_of(std::span<const double> numbers, std::uint64_t start) {
  std::array<std::uint64_t, 4> hashes{start, 1, 2, 3};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::uint64_t& hash = hashes[i % hashes.size()];
    hash = hash_step(hash, std::bit_cast<std::uint64_t>(numbers[i]));
  }
  for (const std::uint64_t hash : hashes) start = hash_step(start, (hash >> 29) ^ hash);
  return start;
}

std::uint64_t hash_of(const SameWeights::CallCounts& done, std::span<const double> weights) {
  std::uint64_t hash = kHashStart;
  for (const std::uint64_t part : {done.steps, done.settings.options(), done.settings.counts()})
    hash = hash_step(hash, part);
  return hash_of(weights, hash);
}

// A report as it travels: these, and then its lists.
struct ReportHead {
  std::uint64_t steps, forwards, counts, now, before, settings;
  double rounding;
};

std::vector<std::byte> to_bytes(const WeightsReport& report) {
  const ReportHead head{report.steps,      report.forwards,      report.counts,
                        report.now.size(), report.before.size(), report.settings.size(),
                        report.rounding};
  std::vector<std::byte> bytes;
  const auto append = [&bytes](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  append(std::as_bytes(std::span(&head, 1)));
  for (const auto* list : {&report.now, &report.before, &report.settings})
    append(std::as_bytes(std::span(*list)));
  return bytes;
}

WeightsReport from_bytes(std::span<const std::byte> bytes) {
  ReportHead head{};
  if (bytes.size() < sizeof head) throw CollectiveError("ranks disagree on what they do");
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes = bytes.subspan(sizeof head);
  const auto take = [&bytes](std::uint64_t count) {
    std::vector<double> numbers(std::min<std::uint64_t>(count, bytes.size() / sizeof(double)));
    if (!numbers.empty())
      std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
    bytes = bytes.subspan(numbers.size() * sizeof(double));
    return numbers;
  };
  WeightsReport report{.steps = head.steps,
                       .forwards = head.forwards,
                       .counts = head.counts,
                       .rounding = head.rounding};
  report.now = take(head.now);
  report.before = take(head.before);
  report.settings = take(head.settings);
  return report;
}

// Says how two ranks have parted at one number. Empty if they have not.
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

// How the optimizers of two ranks differ in their settings.
std::optional<std::string> unlike(const WeightsReport& first, const WeightsReport& other,
                                  std::span<const StepSetting> names) {
  std::vector<StepSetting> settings;
  for (std::size_t i = 0; i < first.settings.size(); ++i) {
    const bool named = i < names.size();
    settings.push_back(
        {named ? names[i].name : "a number", named ? names[i].group : 0, first.settings[i]});
  }
  auto how = unlike_settings(settings, other.settings, first.rounding == other.rounding);
  if (how || first.counts == other.counts) return how;
  return "the counts of steps of single parameters are unlike";
}

}  // namespace

std::optional<std::string> parted(const std::vector<WeightsReport>& reports,
                                  std::span<const WeightsPlace> places,
                                  std::span<const StepSetting> settings, std::uint64_t pass) {
  constexpr const char* kAdvice =
      "All ranks must make the same steps, by the same settings, on the same gradients, from the "
      "same weights. The weights have parted, so the job must start anew from a checkpoint";
  const WeightsReport& first = reports.front();
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    const WeightsReport& other = reports[rank];
    if (other.steps != first.steps) {
      return fmt::format(
          "before pass {} the ranks called step() unlike numbers of times: rank 0 {}, rank {} {}.{}"
          " {}",
          pass, first.steps, rank, other.steps, left_out(first, other, rank), kAdvice);
    }
    if (const auto how = unlike(first, other, settings)) {
      return fmt::format(
          "before pass {} the optimizers of rank 0 and rank {} became unlike: there {}. {}", pass,
          rank, *how, kAdvice);
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

SameWeights::SameWeights(std::span<const NamedParameter> parameters, Collective& collective,
                         bool alike)
    : parameters_(parameters), collective_(collective) {
  if (collective_.world_size() == 1 || collective_.device() != Device::kCpu) return;
  const std::size_t stride = parameters_.size() / kNumbersMax + 1;
  const std::size_t taken = (parameters_.size() + stride - 1) / stride;
  const std::size_t each = std::clamp(kNumbersMax / taken, std::size_t{1}, kNumbersOfOneMax);
  for (std::size_t i = 0; i < parameters_.size(); i += stride) {
    const std::int64_t elements = elements_of(parameters_[i].tensor);
    const std::int64_t count = std::min(elements, static_cast<std::int64_t>(each));
    Part part{.parameter = i, .count = static_cast<std::size_t>(count), .elements = {}};
    // In the middle of as many equal parts.
    for (std::int64_t k = 0; k < count; ++k)
      part.elements.at(static_cast<std::size_t>(k)) = (2 * k + 1) * elements / (2 * count);
    if (count > 0) parts_.push_back(part);
  }
  if (!parts_.empty()) same_.emplace(collective_);
  if (alike) before_ = read();
}

// Few of them are in a cache. A number that is read some parameters later is on its way meanwhile,
// if it is at its old address.
void SameWeights::read_into(std::vector<double>& numbers) const {
  constexpr std::size_t kAhead = 8;
  numbers.clear();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i + kAhead < parts_.size()) {
      const Part& later = parts_[i + kAhead];
      const auto* const tensor = parameters_[later.parameter].tensor.unsafeGetTensorImpl();
      __builtin_prefetch(tensor);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(tensor) + sizeof(*tensor) / 2);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(tensor) + sizeof(*tensor) - 1);
      for (const void* place : later.places) __builtin_prefetch(place);
    }
    const Part& part = parts_[i];
    const at::Tensor& tensor = parameters_[part.parameter].tensor;
    read_elements(tensor, std::span(part.elements).first(part.count), numbers);
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    for (std::size_t k = 0; k < part.count; ++k)
      part.places[k] = data + static_cast<std::size_t>(part.elements[k]) * tensor.itemsize();
  }
}

std::vector<double> SameWeights::read() const {
  std::vector<double> numbers;
  read_into(numbers);
  return numbers;
}

void SameWeights::start() {
  stopped_ = false;
  before_ = read();
  forget_done();
}

void SameWeights::forget_done() {
  done_.steps = done_.forwards = 0;
  done_.settings.clear();
}

void SameWeights::count_forward() {
  ++done_.forwards;
  silent_changes_ = 0;
}

void SameWeights::add_settings(const torch::optim::Optimizer& optimizer) {
  if (compares()) done_.settings.add(optimizer);
}

// Weights may change once for another reason: a program gives passes up, and loads a checkpoint.
std::string SameWeights::changed_silently(bool any_silent) {
  std::vector<double> now = read();
  std::string name = any_silent ? changed(before_silent_, now) : std::string();
  before_silent_ = std::move(now);
  silent_changes_ = name.empty() ? 0 : silent_changes_ + 1;
  return silent_changes_ < 2 ? std::string() : name;
}

// Returns the name of the parameter in which two lists of numbers differ. Empty if they differ in
// none.
std::string SameWeights::changed(const std::vector<double>& left,
                                 const std::vector<double>& right) const {
  std::size_t i = 0;
  for (const Part& part : parts_) {
    for (const std::size_t end = i + part.count; i < end; ++i)
      if (i < std::min(left.size(), right.size()) && !near(left[i], right[i], 0))
        return parameters_[part.parameter].name;
  }
  return {};
}

std::vector<WeightsReport> SameWeights::gather(const WeightsReport& mine) {
  std::vector<WeightsReport> reports;
  for (const auto& bytes : collective_.all_gather_bytes(to_bytes(mine)))
    reports.push_back(from_bytes(bytes));
  return reports;
}

void SameWeights::tell(const OperationName& name) {
  if (!compares()) return;
  read_into(now_);
  same_->launch(hash_of(done_, now_), name);
}

void SameWeights::drop() {
  if (same_) same_->drop();
  forget_done();
}

bool SameWeights::compare(std::uint64_t pass) {
  parted_.reset();
  if (same_ && same_->under_way()) {
    if (!same_->finish()) parted_ = explain(pass);
    before_.swap(now_);
  }
  forget_done();
  return !parted_;
}

// The ranks tell each other all that they compare. They may be on unlike processors, and all well.
std::optional<std::string> SameWeights::explain(std::uint64_t pass) {
  WeightsReport mine{.steps = done_.steps,
                     .forwards = done_.forwards,
                     .now = now_,
                     .before = before_,
                     .counts = done_.settings.counts(),
                     .rounding = rounding_kind()};
  for (const StepSetting& setting : done_.settings.named()) mine.settings.push_back(setting.value);
  std::vector<WeightsPlace> places;
  for (const Part& part : parts_) {
    const auto& [name, tensor] = parameters_[part.parameter];
    places.insert(places.end(), part.count, {name, rounding_of(tensor)});
  }
  return parted(gather(mine), places, done_.settings.named(), pass);
}

}  // namespace ddprun::worker
