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
std::optional<Proof> NodeHandshake::challenged(const Challenge& challenge,
                                               std::vector<std::string> channels,
                                               std::string question) {
  if (host_ != Host::kUnknown || challenge.nonce.size() != kNonceBytes) {
    host_ = Host::kRefuted;
    return std::nullopt;
  }
  host_ = Host::kChallenged;
  terms_ = {deed_, job_, nonce_, challenge.nonce, std::move(channels), std::move(question)};
  return Proof{prove(Prover::kCaller, token_.key, terms_), terms_.channels};
}

void NodeHandshake::admitted(const HostProof& admitted) {
  const bool was_asked = std::exchange(host_, Host::kRefuted) == Host::kChallenged;
  if (!was_asked) return;
  if (is_proof(admitted.bytes, Prover::kHost, token_.key, terms_))
    host_ = Host::kProven;
  else if (token_.key.empty() || token_.is_optional)
    host_ = Host::kOpen;
}

}  // namespace ddprun::rendezvous
