#include "store/memory_bound.h"

#include <fmt/format.h>

#include <utility>

namespace ddprun::store {
namespace {

// Between two looks at most so much is taken in, and at least so much.
constexpr std::size_t kMostStep = 64 * kMiB;
constexpr std::size_t kLeastStep = kMiB;

}  // namespace

void MemoryBound::looked(StoreLimits& limits, const MemoryUse& held,
                         std::optional<std::uint64_t> left) {
  limits.stored_bytes = given_.stored_bytes;
  limits.buffered_bytes = given_.buffered_bytes;
  left_.reset();
  look_at_ = held.sum() + kMostStep;
  if (!left) return;
  const std::size_t room = *left - std::min<std::uint64_t>(*left, kKeptBytes);
  limits.stored_bytes = std::min(limits.stored_bytes, held.stored + room);
  limits.buffered_bytes =
      std::min(limits.buffered_bytes, std::max(held.buffered + room, kFreeBytes));
  look_at_ = std::max(kFreeBytes, held.sum() + std::clamp(room / 4, kLeastStep, kMostStep));
  if (limits.stored_bytes < given_.stored_bytes) left_ = left;
}

std::optional<std::string> MemoryBound::refused(const Error& error, std::size_t stored) {
  if (!left_ || error.code() != ErrorCode::kLimit) return std::nullopt;
  look_at_ = kFreeBytes;  // there may be more the next time
  if (std::exchange(logged_, true)) return std::nullopt;
  return fmt::format(
      "store: a request was refused, and its connection closed: the store holds {} MiB, and {} MiB "
      "of memory are left on this host or in its cgroup, of which {} MiB are kept for the launcher",
      stored / kMiB, *left_ / kMiB, kKeptBytes / kMiB);
}

}  // namespace ddprun::store
