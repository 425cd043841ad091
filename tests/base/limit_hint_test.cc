// The limit that is to be raised.
#include "base/limit_hint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/room_check.h"

namespace ddprun {
namespace {

TEST(LimitHint, NamesTheLimit) {
  EXPECT_NE(describe_errno(EMFILE).find("Too many open files; raise"), std::string::npos);
  EXPECT_NE(limit_hint(EMFILE).find("`ulimit -n`"), std::string::npos);
  EXPECT_NE(limit_hint(EAGAIN).find("`ulimit -u`"), std::string::npos);
  EXPECT_NE(limit_hint(ENOMEM).find("`ulimit -v`"), std::string::npos);
  EXPECT_NE(describe_errno(ENOSPC).find("No space left on device; make room"), std::string::npos);
  EXPECT_NE(limit_hint(EDQUOT).find("quota"), std::string::npos);
  EXPECT_NE(limit_hint(EFBIG).find("`ulimit -f`"), std::string::npos);
  EXPECT_EQ(describe_errno(ENOENT), "No such file or directory");
  EXPECT_EQ(limit_hint(ENOENT), "");
  EXPECT_EQ(describe_errno(99999), "unknown error");
}

// A thread's stack may be what does not fit.
TEST(LimitHint, NamesTheLimitOfMemoryForAThreadWhereThereIsOne) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &old), 0);
  rlimit some = old;
  // It stops nobody: a sanitizer has mapped much.
  some.rlim_cur = old.rlim_max == RLIM_INFINITY ? RLIM_INFINITY - 1 : old.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &some), 0);
  EXPECT_TRUE(has_memory_limit());
  EXPECT_NE(limit_hint(EAGAIN).find("`ulimit -v`"), std::string::npos);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &old), 0);
  EXPECT_EQ(has_memory_limit(), old.rlim_cur != RLIM_INFINITY);
}

TEST(LimitHintDeathTest, EndsInOneLineWhereMemoryOrThreadsRunOut) {
  const auto end = [](auto escape) {
    end_where_a_limit_is_hit("program");
    std::thread(escape).join();  // an exception of a thread of its own escapes
  };
  EXPECT_EXIT(end([] { throw std::bad_alloc(); }), testing::ExitedWithCode(1),
              "^program: no memory is left; raise the limit of memory: `ulimit -v`[^\n]*\n$");
  EXPECT_EXIT(end([] { throw std::system_error(EAGAIN, std::generic_category()); }),
              testing::ExitedWithCode(1), "^program: cannot go on: Resource [^\n]*`ulimit -u`");
  EXPECT_EXIT(end([] { throw std::runtime_error("another"); }), testing::KilledBySignal(SIGABRT),
              "");
}

TEST(RoomCheck, FindsRoomForAFewAndNoneForMany) {
  EXPECT_TRUE(check_room({.descriptors = 2, .threads = 2, .memory_bytes = 1U << 20U}));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit few = old;
  few.rlim_cur = 12;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto checked = check_room({.descriptors = 12, .threads = 0});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::kLimit);
  EXPECT_NE(checked.error().message().find("`ulimit -n`"), std::string::npos);
}

}  // namespace
}  // namespace ddprun
