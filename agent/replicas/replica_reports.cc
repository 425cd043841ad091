#include "agent/replicas/replica_reports.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "rendezvous/core/replicas.h"

namespace ddprun::agent {
namespace {

using rendezvous::ReplicaReport;
using rendezvous::ReplicaSum;
using rendezvous::ReplicaTensors;

// A message holds so many ranks; the others come in another one.
std::vector<std::vector<int>> in_parts(const std::vector<int>& ranks) {
  std::vector<std::vector<int>> parts;
  for (std::size_t at = 0; at < ranks.size(); at += rendezvous::kMostReplicaRanks) {
    const std::size_t end = std::min(at + rendezvous::kMostReplicaRanks, ranks.size());
    parts.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(at),
                       ranks.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return parts;
}

ReplicaTensors tensors_of(const rendezvous::ReplicaQuestion& question, const ReplicaHashes& of) {
  ReplicaTensors tensors{
      .tensors = static_cast<std::int64_t>(of.hashes.size()),
      .cells = rendezvous::replica_cells(of.hashes, question.first, question.count)};
  const auto names = static_cast<std::int64_t>(of.names.size());
  constexpr auto kMost = static_cast<std::int64_t>(rendezvous::kMostReplicaNames);
  if (question.count <= 0 || question.count > kMost) return tensors;
  for (std::int64_t at = question.first; at < std::min(question.first + question.count, names);
       ++at)
    tensors.names.push_back(of.names[static_cast<std::size_t>(at)]);
  return tensors;
}

}  // namespace

std::vector<ReplicaReport> replica_reports(std::int64_t round,
                                           const std::vector<RankCheck>& checks) {
  std::map<std::tuple<std::int64_t, std::uint64_t, int, std::uint64_t>, std::vector<int>> together;
  for (const RankCheck& one : checks)
    together[{one.check.step, one.set, one.members, one.check.sum}].push_back(one.rank);
  std::vector<ReplicaReport> reports;
  std::size_t ranks_of_last = 0;
  for (const auto& [key, all] : together) {
    const auto& [step, set, members, sum] = key;
    for (const std::vector<int>& ranks : in_parts(all)) {
      const bool fits = !reports.empty() &&
                        reports.back().sums.size() < rendezvous::kMostReplicaSums &&
                        ranks_of_last + ranks.size() <= rendezvous::kMostReplicaRanks;
      if (!fits) {
        reports.push_back({.round = round});
        ranks_of_last = 0;
      }
      ranks_of_last += ranks.size();
      reports.back().sums.push_back({set, members, step, sum, ranks});
    }
  }
  return reports;
}

std::vector<ReplicaReport> replica_answers(const rendezvous::ReplicaQuestion& question,
                                           const std::vector<RankHashes>& ranks) {
  std::vector<ReplicaTensors> together;
  for (const RankHashes& one : ranks) {
    ReplicaTensors tensors = tensors_of(question, one.hashes);
    const auto same = std::ranges::find_if(together, [&](const ReplicaTensors& other) {
      return other.ranks.size() < rendezvous::kMostReplicaRanks &&
             std::tie(other.tensors, other.cells, other.names) ==
                 std::tie(tensors.tensors, tensors.cells, tensors.names);
    });
    if (same == together.end()) {
      tensors.ranks = {one.rank};
      together.push_back(std::move(tensors));
    } else {
      same->ranks.push_back(one.rank);
    }
  }
  std::vector<ReplicaReport> reports;
  reports.reserve(together.size());
  for (ReplicaTensors& tensors : together)
    reports.push_back(
        {.round = question.round, .question = question.number, .tensors = {std::move(tensors)}});
  return reports;
}

}  // namespace ddprun::agent
