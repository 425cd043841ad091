// Bounds of the store: what one request, one connection and the whole server may take. A request
// that passes a bound costs its own connection and no other. Two bounds hold for all connections
// together. Above kConnections the newcomer is refused; above kBufferedBytes the connection that
// holds most is dropped. The first three bounds are PyTorch's own (torch 2.11,
// TCPStoreLibUvBackend.cpp), so that both sides agree on what fits. The others bound what PyTorch
// leaves unbounded. Plain numbers; the room has no other limits for its peers.
#pragma once

#include <chrono>
#include <cstddef>

namespace ddprun::store {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Bytes of one key with its prefixes. As PyTorch.
inline constexpr std::size_t kKeyBytes = 8192;
// Bytes of one value. As PyTorch. Raise it here if workers must exchange more.
inline constexpr std::size_t kValueBytes = 8 * kMiB;
// Keys (or pairs) of one CHECK, WAIT, MULTI_GET or MULTI_SET. As PyTorch.
inline constexpr std::size_t kKeysPerRequest = 131'072;
// Bytes of one request. PyTorch would buffer 131,072 keys x 8 MiB = 1 TiB. This has room for
// 131,072 pairs of 500 bytes.
inline constexpr std::size_t kRequestBytes = 64 * kMiB;
// Bytes of the answer to one request. A short MULTI_GET may name one large value 131,072 times.
inline constexpr std::size_t kReplyBytes = 256 * kMiB;
// Open connections: enough for 65,536 ranks with one clone of the store each. The process's
// descriptors may allow fewer (base/net/descriptors.h).
inline constexpr std::size_t kConnections = 131'072;
// Keys and queues together: enough for 65,536 ranks with 64 keys each.
inline constexpr std::size_t kKeys = std::size_t{1} << 22;
// Bytes of all keys and values, plus kEntryOverheadBytes for each entry. Without a bound the
// launcher could eat the memory of its machine.
inline constexpr std::size_t kStoredBytes = 1024 * kMiB;
// Pending (key, waiter) pairs. Gloo's V2 exchange makes each of 4,096 ranks wait for all others:
// 16.8 million pairs. This is twice as much.
inline constexpr std::size_t kRegistrations = std::size_t{1} << 25;
// Pending WAITs of one connection. PyTorch's client has at most one. When a wait ends, the server
// searches the connection's list, so the list must stay short.
inline constexpr std::size_t kWaitsPerConnection = 16;
// Bytes of unfinished requests and unsent answers of all connections together. Enough for 4,096
// slow ranks with 750 KiB of answer each, twice. Above it the connection that holds most is
// dropped.
inline constexpr std::size_t kBufferedBytes = 8192 * kMiB;
// Time from connecting to a whole VALIDATE. A client sends it at once; a silent peer only takes a
// descriptor from others. Long enough for lost packets and for a client's machine that swaps.
inline constexpr std::chrono::milliseconds kHandshakeLimit{10'000};
// The cost of one map entry besides its bytes (node, two string headers, bucket), rounded.
inline constexpr std::size_t kEntryOverheadBytes = 96;

struct StoreLimits {
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
