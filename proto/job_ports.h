// The ports that a job may meet at where nobody gave one. Each job has a block of its own. It lies
// below the ports that the kernel gives out (ip(7), ip_local_port_range), and above those of
// services.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace ddprun {

inline constexpr int kJobPorts = 8;
inline constexpr std::uint16_t kFirstJobPort = 15000;
inline constexpr std::uint16_t kEndOfJobPorts = 29000;  // torchrun's ports lie behind

// The first of the kJobPorts ports of the job that has this number.
inline std::uint16_t job_port_of(std::uint64_t number) {
  constexpr std::uint64_t kBlocks = (kEndOfJobPorts - kFirstJobPort) / kJobPorts;
  return static_cast<std::uint16_t>(kFirstJobPort + number % kBlocks * kJobPorts);
}

// A job's number where it has only a name. FNV-1a: the same on every node.
inline std::uint64_t number_of_name(std::string_view name) {
  std::uint64_t hash = kHashStart;
  for (const char c : name) hash = hash_step(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace ddprun
