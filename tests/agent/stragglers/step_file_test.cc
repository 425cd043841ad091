#include "agent/stragglers/step_file.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::agent {
namespace {

TEST(StepFile, ASampleIsRead) {
  const auto read = parse_step_file(
      "3\t18446744073709551615\t8\t200\t2\t51000\t210\t50\t60\t40\t45\t47\t30000,40000\n");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->number, 3);
  EXPECT_EQ(read->sample, (rendezvous::StepSample{.group = 18446744073709551615U,
                                                  .members = 8,
                                                  .steps = 200,
                                                  .calls = 2,
                                                  .step_us = 51'000,
                                                  .called_us = {30'000, 40'000},
                                                  .cpu_wait = 210,
                                                  .spread = {50, 60, 40, 45, 47}}));
  EXPECT_TRUE(
      parse_step_file("1\t0\t8\t9\t0\t51000\t0\t1\t1\t1\t1\t1\t\n")->sample.called_us.empty());
}

TEST(StepFile, AnythingElseIsNone) {
  for (const char* text :
       {"", "\n", "1\t7\t8\t200\t2\t51000\t210\t1\t1\t1\t1\t1\t30000,40000", "1\t7\t8\n",
        "0\t7\t8\t9\t0\t5\t0\t1\t1\t1\t1\t1\t\n", "1\tx\t8\t9\t0\t5\t0\t1\t1\t1\t1\t1\t\n",
        "1\t7\t8\t9\t0\t5\t0\t1\t1\t1\t1\t1\t3,\tx\n", "1\t7\t8\t9\t0\t5\t0\t1\t1\t1\t1\t1\t3,,4\n",
        "1\t7\t8\t9\t0\t5\t0\t1\t1\t1\t1\tx\t3\n",
        "1\t7\t99999999999\t9\t0\t5\t0\t1\t1\t1\t1\t1\t\n"})
    EXPECT_FALSE(parse_step_file(text).has_value()) << text;
  std::string many = "1\t7\t8\t9\t20\t5\t0\t1\t1\t1\t1\t1\t1";
  for (int call = 0; call < 20; ++call) many += ",1";
  EXPECT_FALSE(parse_step_file(many + "\n").has_value());
}

}  // namespace
}  // namespace ddprun::agent
