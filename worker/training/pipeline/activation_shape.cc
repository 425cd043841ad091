#include "worker/training/pipeline/activation_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

namespace ddprun::worker {
namespace {

constexpr std::int64_t kMark = 0x5049'5045'0001;  // "PIPE", first form
constexpr std::int64_t kDtypes = static_cast<std::int64_t>(Dtype::kUInt8) + 1;

// Whether dimensions and bytes are within their limits, without overflow.
bool is_bounded(const ActivationShape& shape) {
  if (shape.sizes.size() > kActivationDimsMax) return false;
  auto bytes = static_cast<std::int64_t>(size_of(shape.dtype));
  for (const std::int64_t size : shape.sizes) {
    if (size < 0 || (size > 0 && bytes > kActivationBytesMax / size)) return false;
    bytes *= size;
  }
  return true;
}

}  // namespace

std::string text_of(const ActivationShape& shape) {
  return fmt::format("({}) of {}", fmt::join(shape.sizes, ", "), name_of(shape.dtype));
}

ActivationWords to_words(const ActivationShape& shape) {
  if (!is_bounded(shape))
    throw std::invalid_argument(
        fmt::format("Pipeline: activations {} given, expected at most {} dimensions and {} bytes",
                    text_of(shape), kActivationDimsMax, kActivationBytesMax));
  ActivationWords words{kMark, static_cast<std::int64_t>(shape.dtype), shape.needs_gradient ? 1 : 0,
                        static_cast<std::int64_t>(shape.sizes.size())};
  std::ranges::copy(shape.sizes, words.begin() + 4);
  return words;
}

ActivationShape from_words(const ActivationWords& words) {
  const auto in = [](std::int64_t word, std::int64_t end) { return word >= 0 && word < end; };
  const bool known = words[0] == kMark && in(words[1], kDtypes) && in(words[2], 2) &&
                     in(words[3], kActivationDimsMax + 1);
  ActivationShape shape;
  if (known) {
    shape = {.dtype = static_cast<Dtype>(words[1]),
             .needs_gradient = words[2] == 1,
             .sizes = {words.begin() + 4, words.begin() + 4 + words[3]}};
  }
  if (!known || !is_bounded(shape))
    throw CollectiveError("Pipeline: the stage before sent something else than its activations");
  return shape;
}

}  // namespace ddprun::worker
