#include "worker/training/join/join_iteration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <stdexcept>

namespace ddprun::worker {

JoinIteration read_reports(std::span<const std::vector<std::byte>> reports) {
  JoinIteration round{.ranks = static_cast<int>(reports.size())};
  int last = -1;
  for (int rank = 0; rank < round.ranks; ++rank) {
    const auto& bytes = reports[static_cast<std::size_t>(rank)];
    JoinReport report;
    if (bytes.size() != sizeof report)
      throw std::invalid_argument(fmt::format(
          "Join: rank {} gathers something else: it has no Join, or another one", rank));
    std::memcpy(&report, bytes.data(), sizeof report);
    if (!report.active) {
      round.joined.push_back(rank);
      if (report.last) last = rank;
      continue;
    }
    ++round.active;
    round.source = rank;
    round.records = round.records || report.records;
    round.synchronises = round.synchronises || report.synchronises;
  }
  if (round.active == 0) round.source = last;
  return round;
}

std::string early_end(const JoinIteration& round, int rank, bool active) {
  if (round.active == 0 || round.joined.empty()) return {};
  if (!active) return fmt::format("Rank {} exhausted all inputs.", rank);
  return fmt::format(
      "Detected at least one rank that exhausted inputs. Throwing across all ranks. No more "
      "batches: rank {}",
      fmt::join(round.joined, ", "));
}

}  // namespace ddprun::worker
