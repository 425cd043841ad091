// The words of rendezvous.h to and from the messages of proto/rendezvous.proto, with the limits of
// both. Used by service.cc and client.cc only, on any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "rendezvous/membership.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::rendezvous {

// Bytes of a name, an address or a role. A DNS name has at most 253.
inline constexpr std::size_t kMaxNameBytes = 255;
// Bytes of a failure's text: one line for people. Longer ones are cut by the sender, refused by the
// receiver.
inline constexpr std::size_t kMaxTextBytes = 4096;
// A message of a node: the largest is a Join, six names and some numbers.
inline constexpr int kMaxUpBytes = 16 * 1024;
// A message to a node: the largest is a round, three names and some numbers per seat.
inline constexpr int kMaxDownBytes = kMaxNodes * 1024;
// What a node shows to be let in, as metadata of its call. Binary (gRPC: the name's end), since a
// job may be called anything, and its id stands in for a token where none is set.
inline constexpr const char* kTokenMetadata = "ddprun-token-bin";
inline constexpr const char* kJobMetadata = "ddprun-rdzv-id-bin";

// What a node says.
struct WorkerFailed {
  std::int64_t round = 0;
  Failure failure;
};
struct NodeSucceeded {
  std::int64_t round = 0;
};
struct Leave {
  Failure reason;
};
struct Beat {};
using NodeMessage = std::variant<NodeSpec, WorkerFailed, NodeSucceeded, Leave, Beat>;

// Texts that are too long are cut here, at a character's border; all other values travel unchanged.
v1::FromNode encode(const NodeMessage& said);
v1::ToNode encode(const HostMessage& said);
v1::ToNode encode_beat();

// kProtocol or kLimit when the message is not one that encode() makes.
Result<NodeMessage> decode(const v1::FromNode& message);
// Nothing: a beat.
Result<std::optional<HostMessage>> decode(const v1::ToNode& message);

}  // namespace ddprun::rendezvous
