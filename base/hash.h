// The steps of a hash by FNV-1a (64 bits), over numbers as well as bytes. It is no secret: a peer
// that knows the input knows the hash. Pure; any thread.
#pragma once

#include <cstdint>

namespace ddprun {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325U;
inline constexpr std::uint64_t kHashPrime = 0x100000001b3U;

constexpr std::uint64_t hash_step(std::uint64_t hash, std::uint64_t next) {
  return (hash ^ next) * kHashPrime;
}

}  // namespace ddprun
