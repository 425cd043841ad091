// The node's side of the proofs, for one call after the other to one job's host. Pure but for the
// nonces. Owned by a session; on its thread.
#pragma once

#include <optional>
#include <string>

#include "proto/result.h"
#include "rendezvous/trust/proof.h"

namespace ddprun::rendezvous {

// A bound of what is said to a host: gRPC allows 8 KiB for all metadata of a call, and its own
// error would name no option.
std::optional<Error> check_lengths(const std::string& token, const std::string& job);

class NodeHandshake {
 public:
  // What this call has shown of the host.
  enum class Host { kUnknown, kProven, kRefuted };

  NodeHandshake(std::string token, std::string job)
      : token_(std::move(token)), job_(std::move(job)) {}

  // A new call: the nonce that it brings.
  const std::string& begin();
  // What to send to the host: our proof, or an empty one where the host has proved nothing.
  Proof challenged(const Challenge& challenge);
  Host host() const { return host_; }

  // For the error: who is at the host's address does not prove that he knows the token.
  static constexpr const char* kDistrust =
      "refused: the job's token is missing or wrong, or the host is an impostor";

 private:
  const std::string token_;
  const std::string job_;
  std::string nonce_;
  Host host_ = Host::kUnknown;
};

}  // namespace ddprun::rendezvous
