// JOB on this host: by id, pid or log folder.
#include "daemon/ctl_local.h"

#include <gtest/gtest.h>

namespace ddprun::daemon {
namespace {

const std::vector<rendezvous::JobSnapshot> kJobs = {
    {.job = "none", .pid = 11, .log_folder = "/logs/none_a"},
    {.job = "none", .pid = 12, .log_folder = "/logs/none_b"},
    {.job = "train", .pid = 13}};

int chosen(const std::string& word, const std::string& folder = "") {
  const auto found = choose_job(kJobs, word, folder);
  return found ? kJobs[*found].pid : 0;
}
std::string refused(const std::string& word, std::vector<rendezvous::JobSnapshot> jobs = kJobs) {
  const auto found = choose_job(jobs, word, "");
  return found ? "" : found.error().message();
}

TEST(CtlLocal, AJobHasManyNames) {
  EXPECT_EQ(chosen("train"), 13);
  EXPECT_EQ(chosen("12"), 12);
  EXPECT_EQ(chosen("none_a"), 11);
  EXPECT_EQ(chosen("logs/latest", "/logs/none_b"), 12);
  EXPECT_EQ(chosen("logs", "/logs"), 0);
}

TEST(CtlLocal, WhoIsMeantIsAsked) {
  EXPECT_EQ(refused("none"),
            "2 jobs are meant; name one by its pid: 11 (/logs/none_a), 12 (/logs/none_b)");
  EXPECT_EQ(refused(""),
            "3 jobs are meant; name one by its pid: 11 (/logs/none_a), 12 (/logs/none_b), 13 "
            "(train)");
  EXPECT_EQ(refused("x"),
            "no job of this user on this host has the id, the pid or the log folder x");
  EXPECT_EQ(refused("", {}), "no job of this user runs on this host");
  EXPECT_TRUE(choose_job({kJobs[2]}, "", "").has_value());
}

}  // namespace
}  // namespace ddprun::daemon
