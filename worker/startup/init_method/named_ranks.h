// Names ranks in a line of a wait. Pure; any thread.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ddprun::worker {

// "rank 1, 3"; of many the first ones: "rank 1, 2, 3, 4, 5, 6, 7, 8 and 5 more".
inline std::string named_ranks(std::vector<int> ranks) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t count = ranks.size();
  ranks.resize(std::min(count, kMostNamed));
  std::string text = fmt::format("rank {}", fmt::join(ranks, ", "));
  if (count > kMostNamed) text += fmt::format(" and {} more", count - kMostNamed);
  return text;
}

}  // namespace ddprun::worker
