// The job's name on its host.
#include "agent/processes/job_cookie.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::agent {
namespace {

TEST(JobCookie, SaysWhoStartedTheJob) {
  const JobCookie own = make_job_cookie();
  EXPECT_EQ(parse_job_cookie(own.text()), own);
  EXPECT_EQ(parse_job_cookie(own.text() + "-123-abcdef"), own);
  EXPECT_EQ(own.unique.size(), kUniqueLength);
  for (const char* text : {"", "c0ffee", "1-2-3", "1-2-3-", "a-2-3-x", "1--3-x", "1-0-3-x"})
    EXPECT_EQ(parse_job_cookie(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ddprun::agent
