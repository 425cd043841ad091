// The system calls that are there.
#include "base/new_calls.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <string>

namespace ddprun {
namespace {

TEST(NewCalls, EachHasItsRowAtItsPlace) {
  for (std::size_t i = 0; i < kNewCallCount; ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kNewCalls[i].call), i);
    EXPECT_FALSE(kNewCalls[i].name.empty());
    EXPECT_FALSE(kNewCalls[i].since.empty());
    EXPECT_FALSE(kNewCalls[i].effect.empty());
  }
}

TEST(NewCalls, WhatAnotherKernelOrAFilterAnswersIsNoCall) {
  for (const NewCallRow& row : kNewCalls) {
    EXPECT_TRUE(is_there(row.call, row.probe_errno)) << row.name;
    EXPECT_FALSE(is_there(row.call, ENOSYS)) << row.name;
    EXPECT_FALSE(is_there(row.call, EPERM)) << row.name;
  }
  EXPECT_FALSE(is_there(NewCall::kCloseRange, EINVAL)) << "Linux 5.9 lacks the flag";
  EXPECT_FALSE(is_there(NewCall::kClone3, E2BIG)) << "Linux 5.3 lacks the flag";
}

TEST(NewCalls, ATrialAnswersAsTheKernelDoesOrAFilter) {
  for (const NewCallRow& row : kNewCalls) {
    const int error = try_call(row.call);
    EXPECT_TRUE(error == row.probe_errno || error == ENOSYS || error == EPERM || error == EINVAL ||
                error == E2BIG)
        << row.name << " answers " << error;
    EXPECT_EQ(has_call(row.call), is_there(row.call, error)) << row.name;
  }
}

}  // namespace
}  // namespace ddprun
