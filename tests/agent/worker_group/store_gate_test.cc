// The users of this host that are admitted to the store. tests/jobs/store_users_test.py has real
// connections.
#include "agent/worker_group/store_gate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace ddprun::agent {
namespace {

using Kind = store::PeerUser::Kind;

constexpr uid_t kOtherUser = 4711;

TEST(StoreGate, AdmitsTheUsersOfTheJobAndOtherHosts) {
  std::set<uid_t> of_job{::geteuid(), 4242};
  StoreGate gate([&] { return of_job; });
  const Time now{};
  EXPECT_TRUE(gate.admits({Kind::kUser, ::geteuid()}, now));
  EXPECT_TRUE(gate.admits({Kind::kUser, 0}, now));
  EXPECT_TRUE(gate.admits({Kind::kUser, 4242}, now));
  EXPECT_FALSE(gate.admits({Kind::kUser, kOtherUser}, now));
  EXPECT_TRUE(gate.admits({Kind::kOtherHost}, now));
  EXPECT_TRUE(gate.admits({Kind::kUnknown}, now));
  EXPECT_FALSE(gate.admits({Kind::kNobody}, now)) << "its process has closed it";
}

TEST(StoreGate, AsksForTheUsersOfTheJobSeldom) {
  int asked = 0;
  std::set<uid_t> of_job;
  StoreGate gate([&] {
    ++asked;
    return of_job;
  });
  Time now{};
  now += std::chrono::hours(1);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(gate.admits({Kind::kUser, kOtherUser}, now));
  EXPECT_EQ(asked, 1);
  of_job = {kOtherUser};  // a worker has become that user
  EXPECT_TRUE(gate.admits({Kind::kUser, kOtherUser}, now + StoreGate::kAskAgain));
  EXPECT_TRUE(gate.admits({Kind::kUser, kOtherUser}, now + StoreGate::kAskAgain));
  EXPECT_EQ(asked, 2);
}

TEST(StoreGate, KnowsTheUsersBelowAProcess) {
  EXPECT_TRUE(users_below(::getpid()).contains(::geteuid()));
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setuid(kOtherUser) != 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  bool seen = false;
  for (int i = 0; i < 10'000 && !seen; ++i) seen = users_below(::getpid()).contains(kOtherUser);
  EXPECT_TRUE(seen);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace ddprun::agent
