#include "rendezvous/trust/node_handshake.h"

#include <fmt/format.h>

#include <cstddef>

#include "proto/token_file.h"

namespace ddprun::rendezvous {
namespace {

std::optional<Error> too_long(const char* what, const std::string& text, std::size_t most) {
  if (text.size() <= most) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("rendezvous: {} has {} bytes, more than {}", what, text.size(), most));
}

}  // namespace

std::optional<Error> check_lengths(const std::string& token, const std::string& job) {
  if (auto error = too_long("the token", token, kMaxTokenBytes)) return error;
  return too_long("rdzv_id", job, kMaxJobBytes);
}

const std::string& NodeHandshake::begin() {
  host_ = Host::kUnknown;
  return nonce_ = make_nonce();
}

// A second challenge in one call is none of a host of ours.
Proof NodeHandshake::challenged(const Challenge& challenge) {
  const ProofTerms terms{job_, nonce_, challenge.nonce};
  const bool is_right = host_ == Host::kUnknown && challenge.nonce.size() == kNonceBytes &&
                        is_proof(challenge.proof, Prover::kHost, token_, terms);
  host_ = is_right ? Host::kProven : Host::kRefuted;
  return is_right ? Proof{prove(Prover::kNode, token_, terms)} : Proof{};
}

}  // namespace ddprun::rendezvous
