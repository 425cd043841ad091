// Bounds of the store: what one request, one connection and the whole server may take. A breach
// costs the connection that caused it, nobody else, and one of the server's as a whole the newcomer
// or whoever holds most. The first three are PyTorch's own (torch 2.11,
// libuv server), so that both sides agree on what fits; the others bound what PyTorch leaves
// unbounded. Plain numbers; no code of the room decides by anything else.
#pragma once

#include <chrono>
#include <cstddef>

namespace ddprun::store {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Bytes of one key, prefixes included. As PyTorch.
inline constexpr std::size_t kKeyBytes = 8192;
// Bytes of one value. As PyTorch; raise it where workers exchange more.
inline constexpr std::size_t kValueBytes = 8 * kMiB;
// Keys (or pairs) of one CHECK, WAIT, MULTI_GET or MULTI_SET. As PyTorch.
inline constexpr std::size_t kKeysPerRequest = 131'072;
// Bytes of one request. PyTorch would buffer keys x value: 1 TiB. Room for 131,072 pairs of 500
// bytes.
inline constexpr std::size_t kRequestBytes = 64 * kMiB;
// Bytes of the answer to one request: a MULTI_GET may name a large value 131,072 times.
inline constexpr std::size_t kReplyBytes = 256 * kMiB;
// Open connections: 65,536 ranks, each with a clone of its store. The process's descriptors may
// allow fewer (store/descriptors.h).
inline constexpr std::size_t kConnections = 131'072;
// Map keys and queues together: 65,536 ranks with 64 keys each.
inline constexpr std::size_t kKeys = std::size_t{1} << 22;
// Bytes held as keys and values (kEntryOverheadBytes counted for each), so that the launcher cannot
// eat its host.
inline constexpr std::size_t kStoredBytes = 1024 * kMiB;
// Pending (key, waiter) pairs: 4,096 ranks, each waiting for all of the others (Gloo's V2
// exchange), and as much again.
inline constexpr std::size_t kRegistrations = std::size_t{1} << 25;
// Pending WAITs of one connection. PyTorch's client has at most one; every one costs a linear step
// when it ends.
inline constexpr std::size_t kWaitsPerConnection = 16;
// Bytes of unfinished requests and unsent answers over all connections: 4,096 slow ranks with 750
// KiB of answer, twice. Beyond it the connection that holds most is dropped.
inline constexpr std::size_t kBufferedBytes = 8192 * kMiB;
// From connecting to a whole VALIDATE. A client sends it at once; whoever is silent holds a
// descriptor. Long enough for lost packets and a client's machine that swaps.
inline constexpr std::chrono::milliseconds kHandshakeLimit{10'000};
// What a map entry costs besides its bytes (node, two string headers, bucket), rounded.
inline constexpr std::size_t kEntryOverheadBytes = 96;

struct Limits {
  std::size_t key_bytes = kKeyBytes;
  std::size_t value_bytes = kValueBytes;
  std::size_t keys_per_request = kKeysPerRequest;
  std::size_t request_bytes = kRequestBytes;
  std::size_t reply_bytes = kReplyBytes;
  std::size_t connections = kConnections;
  std::size_t keys = kKeys;
  std::size_t stored_bytes = kStoredBytes;
  std::size_t registrations = kRegistrations;
  std::size_t waits_per_connection = kWaitsPerConnection;
  std::size_t buffered_bytes = kBufferedBytes;
  std::chrono::milliseconds handshake = kHandshakeLimit;
};

}  // namespace ddprun::store
