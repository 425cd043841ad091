// How two sides show each other that they know one token without sending it: each answers the
// other's nonce with HMAC-SHA256 (RFC 2104, FIPS 180-4) under the token. Both nonces are fresh, so
// what was recorded of another call proves nothing in this one. Who only alters what travels is not
// stopped by it (TLS does that), and whoever has one proof can try tokens against it: a token must
// not be a word that can be guessed.
//
// Pure but for make_nonce(). Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;  // of SHA-256

// What the host sends first: its nonce, and its proof over both.
struct Challenge {
  std::string nonce;
  std::string proof;

  bool operator==(const Challenge&) const = default;
};

// What the node answers. Empty: it does not believe the host, and goes.
struct Proof {
  std::string bytes;

  bool operator==(const Proof&) const = default;
};

// What both sides know of one call. The proofs are over all of it.
struct ProofTerms {
  std::string job;  // the rendezvous id, any bytes
  std::string node_nonce;
  std::string host_nonce;

  bool operator==(const ProofTerms&) const = default;
};

// Whose proof it is. It is part of what is proved: a proof that is sent back proves nothing.
enum class Prover { kHost, kNode };

// kNonceBytes random bytes of the kernel's.
std::string make_nonce();

// kProofBytes. Both nonces must have kNonceBytes. An empty token is a token like any other.
std::string prove(Prover prover, std::string_view token, const ProofTerms& terms);

// Takes the same time wherever `proof` differs from the right one.
bool is_proof(std::string_view proof, Prover prover, std::string_view token,
              const ProofTerms& terms);

}  // namespace ddprun::rendezvous
