// The file in which a worker leaves the hashes of its last checks: one for each optimizer. The
// Python hook writes it (agent/standby/python/replicas.py, Ring). All words have 64 bits, little
// endian:
//
//   magic, tensors, ranks of the group, set, place of the names, bytes of the names, slots, 0
//   for each slot: step of the optimizer, 0: none; and the hash of all tensors
//   for each slot: the hash of each tensor
//   the tensors' names, a newline between them
//
// The worker writes while we read. A slot's step is 0 until all of the slot is there. Nothing in
// the file is trusted to be well formed. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

struct ReplicaCheck {
  std::int64_t step = 0;
  std::uint64_t sum = 0;

  bool operator==(const ReplicaCheck&) const = default;
};
struct ReplicaChecks {
  std::uint64_t set = 0;
  int members = 0;                     // ranks of the group
  std::vector<ReplicaCheck> checks{};  // by step
};
// One check.
struct ReplicaHashes {
  std::uint64_t set = 0;
  std::vector<std::uint64_t> hashes{};  // one a tensor
  std::vector<std::string> names{};     // as many
};

// Nothing if there is no such file, or no check in it. The caller need not say so: a worker writes
// it at its first check.
std::optional<ReplicaChecks> read_replica_checks(const std::string& path);
// Nothing as well if the check of this step is not there any more.
std::optional<ReplicaHashes> read_replica_hashes(const std::string& path, std::int64_t step);

}  // namespace ddprun::agent
