#include "proto/standby.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/file_handle.h"

namespace ddprun {
namespace {

class ReleaseHeads : public testing::Test {
 protected:
  ReleaseHeads() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    agent = FileHandle(ends[0]);
    standby = FileHandle(ends[1]);
  }
  FileHandle agent;
  FileHandle standby;
};

TEST_F(ReleaseHeads, CarryTheSizeAndTwoOpenFiles) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const FileHandle out(pipe[0]);
  const FileHandle in(pipe[1]);
  ASSERT_TRUE(send_release_head(agent.get(), {.size = 0x0102030405, .output = pipe}));
  const auto head = receive_release_head(standby.get());
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->size, 0x0102030405U);
  const FileHandle got_out(head->output[0]);
  const FileHandle got_in(head->output[1]);
  EXPECT_NE(got_in.get(), in.get());
  char byte = 7;
  ASSERT_EQ(::write(got_in.get(), &byte, 1), 1);
  byte = 0;
  ASSERT_EQ(::read(out.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 7);
}

TEST_F(ReleaseHeads, AreNoneWithoutTheFiles) {
  const std::uint64_t size = 5;
  ASSERT_EQ(::write(agent.get(), &size, sizeof size), static_cast<ssize_t>(sizeof size));
  EXPECT_FALSE(receive_release_head(standby.get()).has_value());
}

TEST_F(ReleaseHeads, AreNoneWhereTheOtherEndIsGone) {
  agent.close();
  EXPECT_FALSE(receive_release_head(standby.get()).has_value());
}

TEST_F(ReleaseHeads, AreNotSentToNobody) {
  standby.close();
  EXPECT_FALSE(send_release_head(agent.get(), {.size = 1, .output = {0, 1}}));
}

TEST(HiddenNames, HaveTheLengthOfTheName) {
  EXPECT_EQ(hidden_name("RANK"), "?ANK");
  EXPECT_EQ(hidden_name(""), "") << "a variable without a name";
}

}  // namespace
}  // namespace ddprun
