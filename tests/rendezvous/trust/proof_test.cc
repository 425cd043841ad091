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
  return {.job = "job", .caller_nonce = filled_nonce('n'), .host_nonce = filled_nonce('h')};
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
            "1935017e807688ecd645b5eb657a2bc1b5043af15c4cd02831c34e17bfc95a30");
  ProofTerms stop = terms();
  stop.deed = Deed::kOperate;
  stop.question = "stop";
  stop.channels = {std::string(32, 'c')};
  EXPECT_EQ(hex(prove(Prover::kCaller, "secret", stop)),
            "6fa98b11ceb4846a5b24502f7e548f5427acb51f4313caccdc1999e94ef44a84");
}

// As Python's hashlib.scrypt.
TEST(Proof, AShortTokenIsStretched) {
  EXPECT_EQ(hex(key_of_token("secret")),
            "5b11b866d3feb1d8bc31b2557052b21de0a4975d03d19d1366444492da3b2a50");
  EXPECT_EQ(key_of_token("123456789012345").size(), kProofBytes);
  EXPECT_EQ(key_of_token("1234567890123456"), "1234567890123456");
  EXPECT_EQ(key_of_token(""), "");
}

TEST(Proof, AnEmptyKeyProvesNothing) {
  EXPECT_EQ(prove(Prover::kHost, "", terms()), "");
  EXPECT_FALSE(is_proof("", Prover::kHost, "", terms()));
}

TEST(Proof, HoldsForNothingElse) {
  const std::string right = prove(Prover::kHost, "secret", terms());
  EXPECT_TRUE(is_proof(right, Prover::kHost, "secret", terms()));
  EXPECT_FALSE(is_proof(right, Prover::kCaller, "secret", terms()));
  for (const char* token : {"", "secre", "secret2"})
    EXPECT_FALSE(is_proof(right, Prover::kHost, token, terms())) << token;
  std::vector<ProofTerms> others(8, terms());
  others[0].job = "job2";
  others[1].caller_nonce = filled_nonce('m');
  others[2].host_nonce = filled_nonce('i');
  std::swap(others[3].caller_nonce, others[3].host_nonce);
  others[4].deed = Deed::kOperate;
  others[5].channels = {"c"};
  others[6].question = "q";
  others[7] = {.job = "jo",
               .caller_nonce = terms().caller_nonce,
               .host_nonce = terms().host_nonce,
               .question = "b"};
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

const Challenge kChallenge{filled_nonce('h')};

// Returns the answer of a host of this job with this token to a node's proof.
HostProof admitted_for(const std::string& node_nonce, const std::string& token = "secret") {
  return {prove(Prover::kHost, token,
                {.job = "job", .caller_nonce = node_nonce, .host_nonce = kChallenge.nonce})};
}

TEST(NodeHandshake, ProvesFirstAndBelievesAHostThatKnowsTheToken) {
  NodeHandshake handshake({"secret"}, "job");
  const std::string mine = handshake.begin();
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kUnknown);
  const auto proof = handshake.challenged(kChallenge, {});
  ASSERT_TRUE(proof.has_value());
  EXPECT_TRUE(is_proof(proof->bytes, Prover::kCaller, "secret",
                       {.job = "job", .caller_nonce = mine, .host_nonce = kChallenge.nonce}));
  EXPECT_FALSE(handshake.is_believed());
  handshake.admitted(admitted_for(mine));
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kProven);
}

TEST(NodeHandshake, BelievesNoImpostor) {
  NodeHandshake handshake({"secret"}, "job");
  for (const bool guesses : {true, false}) {
    const std::string mine = handshake.begin();
    ASSERT_TRUE(handshake.challenged(kChallenge, {}).has_value());
    handshake.admitted(guesses ? admitted_for(mine, "guess") : HostProof{});
    EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
    // The right one comes too late: who tries twice is no host of ours.
    handshake.admitted(admitted_for(mine));
    EXPECT_FALSE(handshake.is_believed());
  }
  handshake.begin();
  EXPECT_FALSE(handshake.challenged({"h"}, {}).has_value());
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
  handshake.begin();
  EXPECT_TRUE(handshake.challenged(kChallenge, {}).has_value());
  EXPECT_FALSE(handshake.challenged(kChallenge, {}).has_value()) << "one in each call";
  // Without having asked.
  handshake.admitted(admitted_for(handshake.begin()));
  EXPECT_FALSE(handshake.is_believed());
}

// An eavesdropper has the bytes of an earlier call.
TEST(NodeHandshake, BelievesNoReplay) {
  NodeHandshake handshake({"secret"}, "job");
  const HostProof heard = admitted_for(handshake.begin());
  handshake.begin();
  ASSERT_TRUE(handshake.challenged(kChallenge, {}).has_value());
  handshake.admitted(heard);
  EXPECT_EQ(handshake.host(), NodeHandshake::Host::kRefuted);
}

TEST(NodeHandshake, WithoutATokenNothingIsProved) {
  for (const CallerToken& token : {CallerToken{}, CallerToken{"made for it", true}}) {
    NodeHandshake handshake(token, "job");
    handshake.begin();
    EXPECT_EQ(handshake.challenged(kChallenge, {})->bytes.empty(), token.key.empty());
    handshake.admitted({});
    EXPECT_EQ(handshake.host(), NodeHandshake::Host::kOpen);
  }
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
