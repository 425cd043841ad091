#include "rendezvous/trust/doorkeeper.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;
using Ids = std::vector<Doorkeeper::CallId>;

std::string nonce(char byte) { return std::string(kNonceBytes, byte); }

// Serves "a" with the token "token-a", and "b".
struct DoorkeeperTest : testing::Test {
  Result<Challenge> call(int number, const std::string& job = "a", seconds at = seconds(0)) {
    return doorkeeper.called(id(number), job, nonce('n'), nonce('h'), start + at);
  }
  Doorkeeper::CallId id(int number) { return &calls.at(static_cast<std::size_t>(number)); }
  static std::string proof(const std::string& token, const std::string& job = "a",
                           Prover prover = Prover::kNode) {
    return prove(prover, token, {job, nonce('n'), nonce('h')});
  }

  const Doorkeeper::Time start{};
  std::array<int, 8> calls{};
  Doorkeeper doorkeeper{[](const std::string& job) {
                          return job == "a" || job == "b" ? std::optional("token-" + job)
                                                          : std::nullopt;
                        },
                        3};
};

TEST_F(DoorkeeperTest, LetsInWhoProvesThatItKnowsTheToken) {
  const auto challenge = call(0);
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->nonce, nonce('h'));
  EXPECT_EQ(challenge->proof, proof("token-a", "a", Prover::kHost));
  ASSERT_TRUE(doorkeeper.awaits(id(0)));
  const auto job = doorkeeper.answered(id(0), proof("token-a"));
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(*job, "a");
  EXPECT_FALSE(doorkeeper.awaits(id(0)));
  EXPECT_EQ(doorkeeper.look_again_at(), Doorkeeper::Time::max());
}

TEST_F(DoorkeeperTest, RefusesWhatIsNoProof) {
  for (const std::string& wrong :
       {std::string(), std::string("token-a"), proof("token-b"), proof("token-b", "b"),
        proof("token-a", "b"), proof("token-a", "a", Prover::kHost)}) {
    ASSERT_TRUE(call(0).has_value());
    const auto job = doorkeeper.answered(id(0), wrong);
    ASSERT_TRUE(job.has_error());
    EXPECT_EQ(job.error().code(), ErrorCode::kRejected);
    EXPECT_EQ(job.error().message(), "the job's token is missing or wrong");
    EXPECT_FALSE(doorkeeper.awaits(id(0)));
    doorkeeper.forget(id(0));
  }
}

TEST_F(DoorkeeperTest, EachJobHasItsToken) {
  ASSERT_TRUE(call(0, "b").has_value());
  EXPECT_EQ(*doorkeeper.answered(id(0), proof("token-b", "b")), "b");
  const auto other = call(1, "c");
  ASSERT_TRUE(other.has_error());
  EXPECT_EQ(other.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(other.error().message(), "it serves another job than the one with rdzv_id=c");
  EXPECT_FALSE(doorkeeper.awaits(id(1)));
}

TEST_F(DoorkeeperTest, RefusesWhatNoNodeOfOursBrings) {
  for (const std::string& wrong : {std::string(), nonce('n') + "x", nonce('n').substr(1)}) {
    const auto refused = doorkeeper.called(id(0), "a", wrong, nonce('h'), start);
    ASSERT_TRUE(refused.has_error());
    EXPECT_EQ(refused.error().code(), ErrorCode::kProtocol);
    doorkeeper.forget(id(0));
  }
  EXPECT_EQ(call(1, std::string(256, 'a')).error().code(), ErrorCode::kProtocol);
  EXPECT_EQ(call(2, std::string(255, 'a')).error().code(), ErrorCode::kNotFound);
}

TEST_F(DoorkeeperTest, CutsWhoAnswersTooLate) {
  ASSERT_TRUE(call(0, "a", seconds(0)) && call(1, "a", seconds(1)));
  EXPECT_EQ(doorkeeper.look_again_at(), start + kProofLimit);
  EXPECT_EQ(doorkeeper.overdue(start + kProofLimit - seconds(1)), Ids{});
  EXPECT_EQ(doorkeeper.overdue(start + kProofLimit), Ids{id(0)});
  EXPECT_FALSE(doorkeeper.awaits(id(0)));
  EXPECT_EQ(doorkeeper.look_again_at(), start + kProofLimit + seconds(1));
  doorkeeper.forget(id(1));
  EXPECT_EQ(doorkeeper.look_again_at(), Doorkeeper::Time::max());
  doorkeeper.forget(id(1));  // of a call that it does not know
}

TEST_F(DoorkeeperTest, CutsWhoNeverReadsItsRefusal) {
  ASSERT_TRUE(call(0, "unknown").has_error());
  ASSERT_TRUE(call(1).has_value());
  ASSERT_TRUE(doorkeeper.answered(id(1), "wrong").has_error());
  EXPECT_FALSE(doorkeeper.awaits(id(0)) || doorkeeper.awaits(id(1)));
  EXPECT_EQ(doorkeeper.overdue(start + kProofLimit), (Ids{id(0), id(1)}));
  ASSERT_TRUE(call(2, "unknown").has_error());
  doorkeeper.forget(id(2));  // it has read it
  EXPECT_EQ(doorkeeper.look_again_at(), Doorkeeper::Time::max());
}

TEST_F(DoorkeeperTest, CutsTheOldestOfTooMany) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(call(i).has_value());
  EXPECT_EQ(doorkeeper.overdue(start), Ids{id(0)});
  ASSERT_TRUE(call(4).has_value());
  ASSERT_TRUE(call(5).has_value());
  EXPECT_EQ(doorkeeper.overdue(start), (Ids{id(1), id(2)}));
  EXPECT_EQ(doorkeeper.overdue(Doorkeeper::Time::max()), (Ids{id(3), id(4), id(5)}));
}

}  // namespace
}  // namespace ddprun::rendezvous
