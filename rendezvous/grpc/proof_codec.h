// The proofs of a call as they travel: for the codecs of nodes' and of operators' calls. Pure; any
// thread.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/trust/proof.h"
#include "rendezvous/trust/tls_channels.h"

namespace ddprun::rendezvous {

static_assert(kNonceBytes == kProofBytes);

inline v4::ToNode encode(const Challenge& challenge) {
  v4::ToNode message;
  message.mutable_challenge()->set_nonce(challenge.nonce);
  return message;
}

inline v4::ToNode encode(const HostProof& admitted) {
  v4::ToNode message;
  message.mutable_admitted()->set_proof(admitted.bytes);
  return message;
}

// A nonce, or a proof by itself.
inline std::optional<Error> too_long_secret(const char* name, const std::string& bytes) {
  if (bytes.size() <= kProofBytes) return std::nullopt;
  return Error(ErrorCode::kLimit,
               fmt::format("{} has {} bytes, more than {}", name, bytes.size(), kProofBytes));
}

// kLimit: it is longer than any of ours.
inline Result<Proof> checked_proof(
    const std::string& bytes, const google::protobuf::RepeatedPtrField<std::string>& channels) {
  if (auto error = too_long_secret("proof", bytes)) return *std::move(error);
  if (channels.size() > static_cast<int>(kMostChannels))
    return Error(ErrorCode::kLimit, "a proof for too many channels");
  for (const std::string& channel : channels) {
    if (channel.size() != kChannelBytes)
      return Error(ErrorCode::kLimit, fmt::format("a channel's name has {} bytes, not {}",
                                                  channel.size(), kChannelBytes));
  }
  return Proof{bytes, {channels.begin(), channels.end()}};
}

// The proof of a v4::Proof or a control::v2::ProvenQuestion.
template <typename As = Proof, typename Message>
Result<As> decode_proof(const Message& message) {
  auto proof = checked_proof(message.proof(), message.channels());
  if (!proof) return proof.error();
  return As(*std::move(proof));
}

template <typename As, typename Secret>
Result<As> decode_secret(const char* name, const std::string& bytes) {
  if (auto error = too_long_secret(name, bytes)) return *std::move(error);
  return As(Secret{bytes});
}

}  // namespace ddprun::rendezvous
