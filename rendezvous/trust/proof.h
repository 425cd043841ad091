// How two sides show each other that they know one token without sending it. Each answers with
// HMAC-SHA256 (RFC 2104, FIPS 180-4) under the token. It is over the nonces of both and the proof's
// purpose. Both nonces are fresh, so what was recorded of another call proves nothing in this one.
// A proof is for one deed: what joins a job stops none, and what was asked cannot be exchanged. The
// caller proves first, so a host proves nothing to a caller without the token. A caller may prove
// it to a false host, which can try tokens against that proof. key_of_token() makes a short one
// slow to try.
//
// Pure but for make_nonce(). Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;  // of SHA-256

// The first message of the host: its nonce.
struct Challenge {
  std::string nonce;

  bool operator==(const Challenge&) const = default;
};

// The answer of a caller. No bytes: it has no token. `channels` name the TLS channels that the call
// may travel in (tls_channels.h). There are none if it travels in clear.
struct Proof {
  std::string bytes{};
  std::vector<std::string> channels{};

  bool operator==(const Proof&) const = default;
};

// The last answer of the host: its own proof. No bytes: it let a caller in that proved nothing.
struct HostProof {
  std::string bytes{};

  bool operator==(const HostProof&) const = default;
};

// The purpose of a caller: service and method of the call, and its role.
enum class Deed { kJoin, kOperate };

// The knowledge that both sides have of one call. The proofs are over all of it.
struct ProofTerms {
  Deed deed = Deed::kJoin;
  std::string job;  // the rendezvous id, any bytes
  std::string caller_nonce;
  std::string host_nonce;
  std::vector<std::string> channels{};
  std::string question{};  // of an operator, as it travels

  bool operator==(const ProofTerms&) const = default;
};

// The side that proves. It is part of what is proved: a proof that is sent back proves nothing.
enum class Prover { kHost, kCaller };

// Returns the key that proofs are made with. The token itself; one of fewer than kShortToken bytes
// is stretched (scrypt, RFC 7914). That takes some 0.1 s: call it once. An empty token stays empty.
std::string key_of_token(const std::string& token);

// kNonceBytes random bytes of the kernel's.
std::string make_nonce();

// kProofBytes. Both nonces must have kNonceBytes. An empty key proves nothing: no bytes.
std::string prove(Prover prover, std::string_view key, const ProofTerms& terms);

// Takes the same time wherever `proof` differs from the right one. With an empty key nothing is
// one.
bool is_proof(std::string_view proof, Prover prover, std::string_view key, const ProofTerms& terms);

}  // namespace ddprun::rendezvous
