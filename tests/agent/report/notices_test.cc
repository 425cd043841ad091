// The few lines that ddprun says of its own accord.
#include "agent/report/notices.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(Notices, AreFewAndOnlyOnATerminal) {
  const rendezvous::Round round{
      .world_size = 4, .seats = {{}, {}}, .master_addr = "10.0.0.1", .master_port = 99};
  Notices terminal("ddprun", false, true);
  EXPECT_EQ(terminal.started(round, "/logs"),
            "ddprun: 4 workers on 2 nodes, master 10.0.0.1:99\nddprun: logs in /logs\n");
  EXPECT_EQ(terminal.started(round, "/logs"), "");
  int lines = 2;
  for (int i = 1; i <= 20; ++i)
    lines +=
        terminal.restarting({.message = "rank 1 died"}, i, {.max_restarts = 20}).empty() ? 0 : 1;
  EXPECT_EQ(lines, kOwnLines);
  Notices batch("ddprun", false, false);
  EXPECT_EQ(batch.started(round, "/logs"), "");
  EXPECT_EQ(batch.waiting("h:1", 3s, 60s), "");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 1, {.max_restarts = 3}),
            "ddprun: rank 1 died; restart 1 of 3\n");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 4, {.max_restarts = 3, .window = 60s}),
            "ddprun: rank 1 died; restart 4\n");
  Notices quiet("ddprun", true, true);
  EXPECT_EQ(
      quiet.started(round, "/logs") + quiet.restarting({}, 1, {}) + quiet.waiting("h", 1s, 2s), "");
}

TEST(Notices, TheLineOfWaitingIsEndedOnce) {
  Notices terminal("ddprun", false, true);
  EXPECT_EQ(terminal.waited(), "");
  EXPECT_EQ(terminal.waiting("h:1", 3s, 60s),
            "\rddprun: waiting for the other nodes at h:1 (3 s of 60 s)");
  EXPECT_EQ(terminal.waited(), "\n");
  EXPECT_EQ(terminal.waited(), "");
}

}  // namespace
}  // namespace ddprun::agent
