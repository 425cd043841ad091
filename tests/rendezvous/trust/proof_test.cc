#include "rendezvous/trust/proof.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "rendezvous/trust/node_handshake.h"

namespace ddprun::rendezvous {
namespace {

std::string filled_nonce(char byte) { return std::string(kNonceBytes, byte); }

ProofTerms terms() {
  return {.job = "job", .node_nonce = filled_nonce('n'), .host_nonce = filled_nonce('h')};
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4U];
    text += kDigits[static_cast<unsigned char>(byte) & 15U];
  }
  return text;
}

// The figures come from another implementation: Python's hmac module, with the bytes of proof.cc.
TEST(Proof, IsHmacSha256) {
  EXPECT_EQ(hex(prove(Prover::kHost, "secret", terms())),
            "0d199ddf9ed63f37d826ab52a2e97e39bdaa7fd328c2cccf5db57c7a7479ada3");
  EXPECT_EQ(hex(prove(Prover::kNode, "", terms())),
            "45128a646f4fd830cd33f16d3440c1a6f774c7060e6d5cbf24688aad0bded68e");
}

TEST(Proof, HoldsForNothingElse) {
  const std::string right = prove(Prover::kHost, "secret", terms());
  EXPECT_TRUE(is_proof(right, Prover::kHost, "secret", terms()));
  EXPECT_FALSE(is_proof(right, Prover::kNode, "secret", terms()));
  for (const char* token : {"", "secre", "secret2"})
    EXPECT_FALSE(is_proof(right, Prover::kHost, token, terms())) << token;
  std::vector<ProofTerms> others(4, terms());
  others[0].job = "job2";
  others[1].node_nonce = filled_nonce('m');
  others[2].host_nonce = filled_nonce('i');
  std::swap(others[3].node_nonce, others[3].host_nonce);
  for (const ProofTerms& other : others)
    EXPECT_FALSE(is_proof(right, Prover::kHost, "secret", other));
}

TEST(Proof, EveryByteCounts) {
  const std::string right = prove(Prover::kHost, "secret", terms());
  for (std::size_t i = 0; i < right.size(); ++i) {
    std::string wrong = right;
    wrong[i] = static_cast<char>(wrong[i] ^ 1);
    EXPECT_FALSE(is_proof(wrong, Prover::kHost, "secret", terms())) << i;
  }
  EXPECT_FALSE(is_proof(right.substr(1), Prover::kHost, "secret", terms()));
  EXPECT_FALSE(is_proof(right + "x", Prover::kHost, "secret", terms()));
  EXPECT_FALSE(is_proof("", Prover::kHost, "secret", terms()));
}

TEST(Proof, NoncesAreFresh) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(make_nonce());
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_EQ(seen.begin()->size(), kNonceBytes);
}

// What a host of this job sends to a call with this nonce.
Challenge challenge_for(const std::string& node_nonce, const std::string& token = "secret") {
  const ProofTerms of_host{"job", node_nonce, filled_nonce('h')};
  return {of_host.host_nonce, prove(Prover::kHost, token, of_host)};
}

TEST(NodeHandshake, AnswersAHostThatKnowsTheToken) {
  NodeHandshake handshake("secret", "job");
  const std::string mine = handshake.begin();
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kUnknown);
  const Proof proof = handshake.challenged(challenge_for(mine));
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kProven);
  EXPECT_TRUE(is_proof(proof.bytes, Prover::kNode, "secret", {"job", mine, filled_nonce('h')}));
}

TEST(NodeHandshake, AnswersNoImpostor) {
  NodeHandshake handshake("secret", "job");
  const std::string mine = handshake.begin();
  EXPECT_EQ(handshake.challenged(challenge_for(mine, "guess")), Proof{});
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
  // The right one comes too late: who tries twice is no host of ours.
  EXPECT_EQ(handshake.challenged(challenge_for(mine)), Proof{});
  for (const Challenge& wrong :
       {Challenge{}, Challenge{filled_nonce('h'), ""}, Challenge{"h", "p"}}) {
    handshake.begin();
    EXPECT_EQ(handshake.challenged(wrong), Proof{});
    EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
  }
  // The next call is judged for itself.
  EXPECT_NE(handshake.challenged(challenge_for(handshake.begin())), Proof{});
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kProven);
}

// What an eavesdropper has of an earlier call.
TEST(NodeHandshake, BelievesNoReplay) {
  NodeHandshake handshake("secret", "job");
  const Challenge heard = challenge_for(handshake.begin());
  EXPECT_NE(handshake.challenged(heard), Proof{});
  handshake.begin();
  EXPECT_EQ(handshake.challenged(heard), Proof{});
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
  EXPECT_NE(handshake.challenged(challenge_for(handshake.begin())), Proof{});
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kProven);
}

TEST(NodeHandshake, LengthsAreBounded) {
  EXPECT_FALSE(check_lengths(std::string(4096, 't'), std::string(255, 'j')));
  EXPECT_EQ(check_lengths(std::string(4097, 't'), "")->message(),
            "rendezvous: the token has 4097 bytes, more than 4096");
  EXPECT_EQ(check_lengths("", std::string(256, 'j'))->message(),
            "rendezvous: rdzv_id has 256 bytes, more than 255");
}

}  // namespace
}  // namespace ddprun::rendezvous
