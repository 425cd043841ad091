#include "rendezvous/trust/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdint>

#include "base/assert.h"
#include "base/random_number.h"
#include "proto/token_file.h"
#include "rendezvous/trust/openssl.h"

namespace ddprun::rendezvous {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void append(std::string& text, std::string_view part) {
  const auto size = static_cast<std::uint32_t>(part.size());
  for (const unsigned shift : {24U, 16U, 8U, 0U}) text += static_cast<char>(size >> shift);
  text += part;
}

// Each part comes with its length, so no two terms give the same bytes.
std::string text_to_prove(Prover prover, const ProofTerms& terms) {
  DDPRUN_ASSERT(terms.caller_nonce.size() == kNonceBytes && terms.host_nonce.size() == kNonceBytes);
  const bool joins = terms.deed == Deed::kJoin;
  std::string text;
  append(text, "ddprun proof v4");
  append(text,
         joins ? "ddprun.rendezvous.v4.Rendezvous/OpenSession" : "ddprun.control.v2.Control/Ask");
  append(text, prover == Prover::kHost ? "host" : joins ? "node" : "operator");
  append(text, terms.host_nonce);
  append(text, terms.caller_nonce);
  append(text, terms.job);
  append(text, terms.question);
  for (const std::string& channel : terms.channels) append(text, channel);
  return text;
}

// The cost of scrypt: 16 MiB, and some 0.1 s. An attacker that tries tokens needs the same for
// each.
constexpr std::uint64_t kStretchCost = 1 << 14;
constexpr std::uint64_t kStretchBlocks = 8;
constexpr std::uint64_t kStretchTurns = 2;
constexpr std::uint64_t kStretchMemory = 64 << 20;
constexpr std::string_view kStretchSalt = "ddprun token v4";

}  // namespace

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  fill_with_random(nonce.data(), nonce.size());
  return nonce;
}

std::string key_of_token(const std::string& token) {
  if (token.empty() || token.size() >= kShortToken) return token;
  set_up_openssl();
  std::string key(kProofBytes, '\0');
  const int done =
      ::EVP_PBE_scrypt(token.data(), token.size(), bytes_of(kStretchSalt), kStretchSalt.size(),
                       kStretchCost, kStretchBlocks, kStretchTurns, kStretchMemory,
                       reinterpret_cast<unsigned char*>(key.data()), key.size());
  DDPRUN_ASSERT(done == 1);
  return key;
}

std::string prove(Prover prover, std::string_view key, const ProofTerms& terms) {
  if (key.empty()) return {};
  set_up_openssl();
  const std::string text = text_to_prove(prover, terms);
  std::string proof(kProofBytes, '\0');
  unsigned length = 0;
  const auto* const done =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(),
             reinterpret_cast<unsigned char*>(proof.data()), &length);
  DDPRUN_ASSERT(done != nullptr && length == kProofBytes);
  return proof;
}

bool is_proof(std::string_view proof, Prover prover, std::string_view key,
              const ProofTerms& terms) {
  const std::string right = prove(prover, key, terms);
  return !right.empty() && proof.size() == right.size() &&
         ::CRYPTO_memcmp(proof.data(), right.data(), right.size()) == 0;
}

}  // namespace ddprun::rendezvous
