#include "rendezvous/trust/node_authenticator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;
using Ids = std::vector<NodeAuthenticator::CallId>;

std::string nonce(char byte) { return std::string(kNonceBytes, byte); }

// Serves "a" with the token "token-a", and "b".
struct NodeAuthenticatorTest : testing::Test {
  Result<Challenge> call(int number, const std::string& job = "a", seconds at = seconds(0)) {
    return authenticator.called(id(number), job, nonce('n'), nonce('h'), start + at);
  }
  NodeAuthenticator::CallId id(int number) { return &calls.at(static_cast<std::size_t>(number)); }
  static ProofTerms terms(const std::string& job = "a") {
    return {.job = job, .caller_nonce = nonce('n'), .host_nonce = nonce('h')};
  }
  static Proof proof(const std::string& token, const std::string& job = "a") {
    return {prove(Prover::kCaller, token, terms(job))};
  }
  Result<NodeAuthenticator::AdmittedCall> answer(int number, const Proof& proof,
                                                 bool is_clear = true) {
    return authenticator.answered(id(number), proof, is_clear);
  }

  const NodeAuthenticator::Time start{};
  std::array<int, 8> calls{};
  std::string channel_here;
  NodeAuthenticator authenticator{
      {.token_of = [](const std::string& job) -> std::optional<HostToken> {
         if (job == "a" || job == "b") return HostToken{"token-" + job};
         if (job == "open") return HostToken{};
         if (job == "either") return HostToken{"token-either", true};
         return std::nullopt;
       },
       .most = 3,
       .has_channel =
           [this](const std::vector<std::string>& names) {
             return std::ranges::count(names, channel_here) > 0;
           }}};
};

TEST_F(NodeAuthenticatorTest, LetsInWhoProvesThatItKnowsTheToken) {
  const auto challenge = call(0);
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->nonce, nonce('h'));
  ASSERT_TRUE(authenticator.awaits(id(0)));
  const auto in = answer(0, proof("token-a"));
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(in->job, "a");
  EXPECT_TRUE(in->is_proven);
  EXPECT_EQ(in->answer.bytes, prove(Prover::kHost, "token-a", terms()));
  EXPECT_FALSE(authenticator.awaits(id(0)));
  EXPECT_EQ(authenticator.look_again_at(), NodeAuthenticator::Time::max());
}

TEST_F(NodeAuthenticatorTest, RefusesWhatIsNoProof) {
  for (const Proof& wrong :
       {Proof{}, Proof{"token-a"}, proof("token-b"), proof("token-b", "b"), proof("token-a", "b"),
        Proof{prove(Prover::kHost, "token-a", terms())}}) {
    ASSERT_TRUE(call(0).has_value());
    const auto in = answer(0, wrong);
    ASSERT_TRUE(in.has_error());
    EXPECT_EQ(in.error().code(), ErrorCode::kRejected);
    EXPECT_EQ(in.error().message(), "the job's token is missing or wrong");
    EXPECT_FALSE(authenticator.awaits(id(0)));
    authenticator.forget(id(0));
  }
}

// A node's proof to a false host stops no job.
TEST_F(NodeAuthenticatorTest, AProofToJoinIsNoneToOperate) {
  ProofTerms operates = terms();
  operates.deed = Deed::kOperate;
  ASSERT_TRUE(call(0).has_value());
  EXPECT_TRUE(answer(0, {prove(Prover::kCaller, "token-a", operates)}).has_error());
}

// A proof over the channel to somebody in between does not hold over the one from there to here.
TEST_F(NodeAuthenticatorTest, AProofIsForTheChannelThatItCameBy) {
  const auto over = [](const std::string& channel) {
    ProofTerms said = terms();
    if (!channel.empty()) said.channels = {channel};
    return Proof{prove(Prover::kCaller, "token-a", said), said.channels};
  };
  const std::string here(32, 'c');
  const std::string elsewhere(32, 'd');
  const auto is_admitted = [&](const Proof& proof, bool is_clear) {
    EXPECT_TRUE(call(0).has_value());
    const bool in = answer(0, proof, is_clear).has_value();
    authenticator.forget(id(0));
    return in;
  };
  channel_here = here;
  EXPECT_TRUE(is_admitted(over(here), false));
  EXPECT_FALSE(is_admitted(over(elsewhere), false));
  EXPECT_FALSE(is_admitted(over(""), false));
  EXPECT_FALSE(is_admitted(over(here), true)) << "somebody in between takes TLS off";
  EXPECT_TRUE(is_admitted(over(""), true));
  EXPECT_FALSE(is_admitted({over(elsewhere).bytes, {here}}, false));
}

// Without a token, or with one that nobody asked for, a caller that proves nothing is proved
// nothing.
TEST_F(NodeAuthenticatorTest, AnOpenJobProvesNothing) {
  for (const auto& [job, sent] :
       std::vector<std::pair<std::string, Proof>>{{"open", {}},
                                                  {"open", proof("a guess", "open")},
                                                  {"either", {}},
                                                  {"either", proof("a guess", "either")}}) {
    ASSERT_TRUE(call(0, job).has_value());
    const auto in = answer(0, sent);
    ASSERT_TRUE(in.has_value()) << job;
    EXPECT_FALSE(in->is_proven);
    EXPECT_EQ(in->answer, HostProof{});
  }
  ASSERT_TRUE(call(0, "either").has_value());
  EXPECT_TRUE(answer(0, proof("token-either", "either"))->is_proven);
}

TEST_F(NodeAuthenticatorTest, EachJobHasItsToken) {
  ASSERT_TRUE(call(0, "b").has_value());
  EXPECT_EQ(answer(0, proof("token-b", "b"))->job, "b");
  const auto other = call(1, "c");
  ASSERT_TRUE(other.has_error());
  EXPECT_EQ(other.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(other.error().message(), "it serves another job than the one with rdzv_id=c");
  EXPECT_FALSE(authenticator.awaits(id(1)));
}

TEST_F(NodeAuthenticatorTest, RefusesWhatNoNodeOfOursBrings) {
  for (const std::string& wrong : {std::string(), nonce('n') + "x", nonce('n').substr(1)}) {
    const auto refused = authenticator.called(id(0), "a", wrong, nonce('h'), start);
    ASSERT_TRUE(refused.has_error());
    EXPECT_EQ(refused.error().code(), ErrorCode::kProtocol);
    authenticator.forget(id(0));
  }
  EXPECT_EQ(call(1, std::string(256, 'a')).error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(call(2, std::string(255, 'a')).error().code(), ErrorCode::kNotFound);
}

TEST_F(NodeAuthenticatorTest, CutsWhoAnswersTooLate) {
  ASSERT_TRUE(call(0, "a", seconds(0)) && call(1, "a", seconds(1)));
  EXPECT_EQ(authenticator.look_again_at(), start + kProofLimit);
  EXPECT_EQ(authenticator.overdue(start + kProofLimit - seconds(1)), Ids{});
  EXPECT_EQ(authenticator.overdue(start + kProofLimit), Ids{id(0)});
  EXPECT_FALSE(authenticator.awaits(id(0)));
  EXPECT_EQ(authenticator.look_again_at(), start + kProofLimit + seconds(1));
  authenticator.forget(id(1));
  EXPECT_EQ(authenticator.look_again_at(), NodeAuthenticator::Time::max());
  authenticator.forget(id(1));  // of a call that it does not know
}

TEST_F(NodeAuthenticatorTest, CutsWhoNeverReadsItsRefusal) {
  ASSERT_TRUE(call(0, "unknown").has_error());
  ASSERT_TRUE(call(1).has_value());
  ASSERT_TRUE(answer(1, {"wrong"}).has_error());
  EXPECT_FALSE(authenticator.awaits(id(0)) || authenticator.awaits(id(1)));
  EXPECT_EQ(authenticator.overdue(start + kProofLimit), (Ids{id(0), id(1)}));
  ASSERT_TRUE(call(2, "unknown").has_error());
  authenticator.forget(id(2));  // it has read it
  EXPECT_EQ(authenticator.look_again_at(), NodeAuthenticator::Time::max());
}

TEST_F(NodeAuthenticatorTest, CutsTheOldestOfTooMany) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(call(i).has_value());
  EXPECT_EQ(authenticator.overdue(start), Ids{id(0)});
  ASSERT_TRUE(call(4).has_value());
  ASSERT_TRUE(call(5).has_value());
  EXPECT_EQ(authenticator.overdue(start), (Ids{id(1), id(2)}));
  EXPECT_EQ(authenticator.overdue(NodeAuthenticator::Time::max()), (Ids{id(3), id(4), id(5)}));
}

}  // namespace
}  // namespace ddprun::rendezvous
