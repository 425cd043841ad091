#include "rendezvous/trust/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "proto/assert.h"
#include "rendezvous/trust/openssl.h"

namespace ddprun::rendezvous {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Labels and nonces have fixed lengths and the job comes last, so no two terms give the same bytes.
std::string text_to_prove(Prover prover, const ProofTerms& terms) {
  DDPRUN_ASSERT(terms.node_nonce.size() == kNonceBytes && terms.host_nonce.size() == kNonceBytes);
  std::string text = prover == Prover::kHost ? "ddprun v3 host\n" : "ddprun v3 node\n";
  return text + terms.host_nonce + terms.node_nonce + terms.job;
}

}  // namespace

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  // Up to 256 bytes come whole and without an error (getrandom(2)).
  const auto got = ::getrandom(nonce.data(), nonce.size(), 0);
  DDPRUN_ASSERT(got == static_cast<ssize_t>(kNonceBytes));
  return nonce;
}

std::string prove(Prover prover, std::string_view token, const ProofTerms& terms) {
  set_up_openssl();
  const std::string text = text_to_prove(prover, terms);
  std::string proof(kProofBytes, '\0');
  unsigned length = 0;
  // A key must be there even if it is empty: with none, HMAC() would take that of an earlier call.
  const auto* const done =
      ::HMAC(::EVP_sha256(), token.empty() ? "" : token.data(), static_cast<int>(token.size()),
             bytes_of(text), text.size(), reinterpret_cast<unsigned char*>(proof.data()), &length);
  DDPRUN_ASSERT(done != nullptr && length == kProofBytes);
  return proof;
}

bool is_proof(std::string_view proof, Prover prover, std::string_view token,
              const ProofTerms& terms) {
  const std::string right = prove(prover, token, terms);
  return proof.size() == right.size() &&
         ::CRYPTO_memcmp(proof.data(), right.data(), right.size()) == 0;
}

}  // namespace ddprun::rendezvous
