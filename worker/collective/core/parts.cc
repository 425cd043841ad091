#include "worker/collective/core/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace ddprun::worker {
namespace {

[[noreturn]] void refuse(std::string_view what, const std::string& why) {
  throw std::invalid_argument(fmt::format("{}: {}", what, why));
}

std::string name_of(const Part& part) {
  return fmt::format("part [{}, {}) of rank {}", part.begin, part.end, part.owner);
}

void check(std::string_view what, const Part& part, const Flat& flat, int ranks) {
  if (part.owner < 0 || part.owner >= ranks)
    refuse(what, fmt::format("{}: there is no such rank among {}", name_of(part), ranks));
  if (part.begin > part.end) refuse(what, fmt::format("{} ends before it begins", name_of(part)));
  if (part.end > flat.count)
    refuse(what, fmt::format("{} ends behind the {} elements", name_of(part), flat.count));
}

}  // namespace

std::vector<Part> tidy_parts(std::string_view what, const Flat& flat, std::span<const Part> parts,
                             int ranks) {
  std::vector<Part> sorted;
  for (const Part& part : parts) {
    check(what, part, flat, ranks);
    if (part.begin != part.end) sorted.push_back(part);
  }
  std::ranges::sort(sorted, {}, &Part::begin);
  std::vector<Part> tidy;
  for (const Part& part : sorted) {
    if (!tidy.empty() && part.begin < tidy.back().end)
      refuse(what, fmt::format("{} and {} overlap", name_of(tidy.back()), name_of(part)));
    if (!tidy.empty() && part.begin == tidy.back().end && part.owner == tidy.back().owner)
      tidy.back().end = part.end;
    else
      tidy.push_back(part);
  }
  return tidy;
}

std::uint64_t hash_of(std::span<const Part> parts) {
  std::uint64_t hash = kHashStart;
  for (const Part& part : parts) {
    hash = hash_step(hash, static_cast<std::uint64_t>(part.owner));
    hash = hash_step(hash, part.begin);
    hash = hash_step(hash, part.end);
  }
  return hash == 0 ? 1 : hash;
}

OperationKind LaunchRequest::kind() const {
  switch (sharing) {
    case Sharing::kReduceScatter:
      return OperationKind::kReduceScatter;
    case Sharing::kAllGather:
      return OperationKind::kAllGather;
    case Sharing::kAllReduce:
      break;
  }
  return kind_of(reduction);
}

LaunchRequest all_reduce_of(Reduction reduction) { return {.reduction = reduction}; }

LaunchRequest reduce_scatter_of(const Flat& flat, std::span<const Part> parts, Reduction reduction,
                                int ranks) {
  return {Sharing::kReduceScatter, reduction, tidy_parts("reduce-scatter", flat, parts, ranks)};
}

LaunchRequest all_gather_of(const Flat& flat, std::span<const Part> parts, int ranks) {
  return {.sharing = Sharing::kAllGather, .parts = tidy_parts("all-gather", flat, parts, ranks)};
}

}  // namespace ddprun::worker
