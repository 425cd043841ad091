// The caller's side of the proofs, for one call after the other to one job's host. The caller is a
// node or an operator. Pure but for the nonces. Owned by a session; on its thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rendezvous/trust/proof.h"

namespace ddprun::rendezvous {

// A bound of the metadata for a host. gRPC allows 8 KiB for all metadata of a call, and its own
// error would name no option.
std::optional<Error> check_lengths(const std::string& token, const std::string& job);

// The token that a caller has for a job.
struct CallerToken {
  std::string key;  // key_of_token(); empty: none
  // It was made without being asked for. A host that does not know it is a host as one without a
  // token.
  bool is_optional = false;
};

class NodeHandshake {
 public:
  // The host, as far as this call has shown it. kOpen: it proved nothing, and nothing was wanted.
  enum class Host { kUnknown, kChallenged, kProven, kOpen, kRefuted };

  NodeHandshake(CallerToken token, std::string job, Deed deed = Deed::kJoin)
      : token_(std::move(token)), deed_(deed), job_(std::move(job)) {}

  // A new call: the nonce that it brings.
  const std::string& begin();
  // Returns the proof to send to the host. `channels`: those that the call may travel in.
  // `question`: an operator's. Nothing if no host of ours asks so.
  std::optional<Proof> challenged(const Challenge& challenge, std::vector<std::string> channels,
                                  std::string question = {});
  // The host let us in.
  void admitted(const HostProof& admitted);
  Host host() const { return host_; }
  bool is_believed() const { return host_ == Host::kProven || host_ == Host::kOpen; }

  // For the error: who is at the host's address does not prove that it knows the token.
  static constexpr const char* kDistrust =
      "refused: the job's token is missing or wrong, or the host is an impostor";

 private:
  const CallerToken token_;
  const Deed deed_;
  const std::string job_;
  std::string nonce_;
  ProofTerms terms_;
  Host host_ = Host::kUnknown;
};

}  // namespace ddprun::rendezvous
