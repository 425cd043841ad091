// Names of the TLS channels that end in this process. A name comes from the keys of the channel
// (RFC 5705, RFC 8446 section 7.5). Both ends have the same, and no other channel has it. A proof
// over the name is none in another channel. So somebody in between with a certificate of the
// authority cannot pass it on. gRPC does not tell over which of our channels a call travels. So a
// caller names those that were made since its call began, mostly one. A host looks whether one of
// them is its own. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct ssl_st;  // OpenSSL's SSL

namespace ddprun::rendezvous {

inline constexpr std::size_t kChannelBytes = 32;
inline constexpr std::size_t kMostChannels = 8;  // that a caller names

// A moment among the handshakes of this process.
using ChannelMark = std::uint64_t;
ChannelMark mark_channels();

// Returns the channels to hosts that were made after `mark` and live. If there are many, they are
// the first and the last ones. The host may not have read the last handshakes to their end. None
// for a call that does not go by TLS.
std::vector<std::string> client_channels(ChannelMark mark, bool is_tls);
// Returns whether one of them lives here as a host's.
bool has_host_channel(const std::vector<std::string>& names);

// openssl.cc calls these when a connection was made and when it ends.
void watch_channel(ssl_st* connection);
void forget_channel(const ssl_st* connection);

}  // namespace ddprun::rendezvous
