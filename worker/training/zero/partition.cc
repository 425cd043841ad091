#include "worker/training/zero/partition.h"

#include <algorithm>
#include <numeric>

namespace ddprun::worker {
namespace {

std::vector<std::size_t> largest_first(const std::vector<std::int64_t>& counts) {
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return counts[i]; });
  return order;
}

}  // namespace

std::vector<Owners> partition(std::span<const std::vector<std::int64_t>> groups, int ranks) {
  std::vector<std::int64_t> totals(static_cast<std::size_t>(ranks), 0);
  std::vector<Owners> sharded;
  for (const auto& counts : groups) {
    Owners owners(counts.size());
    for (const std::size_t parameter : largest_first(counts)) {
      const auto least = std::ranges::min_element(totals);
      *least += counts[parameter];
      owners[parameter] = static_cast<int>(least - totals.begin());
    }
    sharded.push_back(std::move(owners));
  }
  return sharded;
}

std::vector<std::size_t> owned_by(int rank, const Owners& owners,
                                  const std::vector<std::int64_t>& counts) {
  std::vector<std::size_t> owned = largest_first(counts);
  std::erase_if(owned, [&](std::size_t parameter) { return owners[parameter] != rank; });
  return owned;
}

}  // namespace ddprun::worker
