#include "worker/collective/core/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

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

std::string name_of(const Transfer& one) {
  return fmt::format("transfer of [{}, {}) of rank {} to {} of rank {}", one.begin, one.end,
                     one.from, one.target, one.to);
}

constexpr std::string_view kAllToAll = "all-to-all";

void check(const Transfer& one, const Flat& flat, int ranks) {
  for (const int rank : {one.from, one.to}) {
    if (rank < 0 || rank >= ranks)
      refuse(kAllToAll, fmt::format("{}: there is no such rank among {}", name_of(one), ranks));
  }
  if (one.begin > one.end) refuse(kAllToAll, fmt::format("{} ends before it begins", name_of(one)));
  if (one.end > flat.count || one.target > flat.count ||
      one.end - one.begin > flat.count - one.target)
    refuse(kAllToAll, fmt::format("{} ends behind the {} elements", name_of(one), flat.count));
}

// The elements of the receiver that a transfer writes.
struct Place {
  int rank;
  std::size_t begin;
  std::size_t end;
  const Transfer* of;
};

// All places, in order. Throws if two overlap.
std::vector<Place> places_of(std::span<const Transfer> transfers) {
  std::vector<Place> places;
  for (const Transfer& one : transfers)
    places.push_back({one.to, one.target, one.target + (one.end - one.begin), &one});
  std::ranges::sort(places, {}, [](const Place& one) { return std::pair(one.rank, one.begin); });
  const auto meet = std::ranges::adjacent_find(places, [](const Place& one, const Place& next) {
    return one.rank == next.rank && next.begin < one.end;
  });
  if (meet != places.end())
    refuse(kAllToAll, fmt::format("{} and {} overlap on rank {}", name_of(*meet->of),
                                  name_of(*std::next(meet)->of), meet->rank));
  return places;
}

void refuse_overlaps(std::span<const Transfer> transfers) {
  const auto places = places_of(transfers);
  const auto end_of = [](const Place& one) { return std::pair(one.rank, one.end); };
  for (const Transfer& one : transfers) {
    const auto next = std::ranges::upper_bound(places, std::pair(one.from, one.begin), {}, end_of);
    if (next == places.end() || next->rank != one.from || next->begin >= one.end) continue;
    if (next->of == &one) refuse(kAllToAll, name_of(one) + " overlaps itself");
    refuse(kAllToAll,
           fmt::format("{} and {} overlap on rank {}", name_of(one), name_of(*next->of), one.from));
  }
}

}  // namespace

const char* name_of(Sharing sharing) {
  switch (sharing) {
    case Sharing::kAllReduce:
      return "sum";
    case Sharing::kReduceScatter:
      return "reduce-scatter";
    case Sharing::kAllGather:
      return "all-gather";
    case Sharing::kAllToAll:
      break;
  }
  return "all-to-all";
}

std::vector<Transfer> tidy_transfers(const Flat& flat, std::span<const Transfer> transfers,
                                     int ranks) {
  std::vector<Transfer> tidy;
  for (const Transfer& one : transfers) {
    check(one, flat, ranks);
    if (one.begin != one.end) tidy.push_back(one);
  }
  refuse_overlaps(tidy);
  return tidy;
}

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

namespace {

std::uint64_t hash_of_transfers(std::span<const Transfer> transfers) {
  std::uint64_t hash = kHashStart;
  for (const Transfer& one : transfers) {
    for (const std::uint64_t number :
         {static_cast<std::uint64_t>(one.from), static_cast<std::uint64_t>(one.to), one.begin,
          one.end, one.target})
      hash = hash_step(hash, number);
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace

OperationKind LaunchRequest::kind() const {
  switch (sharing) {
    case Sharing::kReduceScatter:
      return OperationKind::kReduceScatter;
    case Sharing::kAllGather:
      return OperationKind::kAllGather;
    case Sharing::kAllToAll:
      return OperationKind::kAllToAll;
    case Sharing::kAllReduce:
      break;
  }
  return kind_of(reduction);
}

std::uint64_t LaunchRequest::hash() const {
  if (sharing == Sharing::kAllReduce) return 0;
  return sharing == Sharing::kAllToAll ? hash_of_transfers(transfers) : hash_of(parts);
}

LaunchRequest all_reduce_of(Reduction reduction) { return {.reduction = reduction}; }

LaunchRequest reduce_scatter_of(const Flat& flat, std::span<const Part> parts, Reduction reduction,
                                int ranks) {
  return {Sharing::kReduceScatter, reduction, tidy_parts("reduce-scatter", flat, parts, ranks)};
}

LaunchRequest all_gather_of(const Flat& flat, std::span<const Part> parts, int ranks) {
  return {.sharing = Sharing::kAllGather, .parts = tidy_parts("all-gather", flat, parts, ranks)};
}

LaunchRequest all_to_all_of(const Flat& flat, std::span<const Transfer> transfers, int ranks) {
  return {.sharing = Sharing::kAllToAll, .transfers = tidy_transfers(flat, transfers, ranks)};
}

}  // namespace ddprun::worker
