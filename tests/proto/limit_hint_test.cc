// The limit that is to be raised.
#include "proto/limit_hint.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace ddprun {
namespace {

TEST(LimitHint, NamesTheLimit) {
  EXPECT_NE(describe_errno(EMFILE).find("Too many open files; raise"), std::string::npos);
  EXPECT_NE(limit_hint(EMFILE).find("`ulimit -n`"), std::string::npos);
  EXPECT_NE(limit_hint(EAGAIN).find("`ulimit -u`"), std::string::npos);
  EXPECT_NE(limit_hint(ENOMEM).find("`ulimit -v`"), std::string::npos);
  EXPECT_EQ(describe_errno(ENOENT), "No such file or directory");
  EXPECT_EQ(limit_hint(ENOENT), "");
  EXPECT_EQ(describe_errno(99999), "unknown error");
}

}  // namespace
}  // namespace ddprun
