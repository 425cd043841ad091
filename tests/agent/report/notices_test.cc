// The few lines that ddprun says of its own accord.
#include "agent/report/notices.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(Notices, AreFewAndOnlyOnATerminal) {
  const rendezvous::Round round{
      .world_size = 4, .node_count = 2, .master_addr = "10.0.0.1", .master_port = 99};
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
  EXPECT_EQ(batch.waiting("h:1", 3s, {}), "");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 1, {.max_restarts = 3}),
            "ddprun: rank 1 died; restart 1 of 3\n");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 4, {.max_restarts = 3, .window = 60s}),
            "ddprun: rank 1 died; restart 4\n");
  Notices quiet("ddprun", true, true);
  EXPECT_EQ(
      quiet.started(round, "/logs") + quiet.restarting({}, 1, {}) + quiet.waiting("h", 1s, {}), "");
}

TEST(Notices, TellTheCostOfAnIncidentThatWasTold) {
  const std::string stages = "detected 0.004 s, stopped 0.210 s, re-formed 0.031 s";
  Notices batch("ddprun", false, false);
  EXPECT_EQ(batch.cost(stages), "") << "nothing has happened yet";
  int costs = 0;
  for (int i = 1; i <= 20; ++i) {
    batch.restarting({.message = "rank 1 died"}, i, {.max_restarts = 20});
    costs += batch.cost(stages) == "ddprun: " + stages + "\n" ? 1 : 0;
  }
  EXPECT_EQ(costs, kOwnLines);
  EXPECT_EQ(batch.cost(stages), "") << "of an incident that was only logged";
  Notices quiet("ddprun", true, false);
  quiet.resizing({.message = "the job grows"});
  EXPECT_EQ(quiet.cost(stages), "");
}

TEST(Notices, TheLineOfWaitingIsEndedOnce) {
  Notices terminal("ddprun", false, true);
  EXPECT_EQ(terminal.waited(), "");
  EXPECT_EQ(terminal.waiting("h:1", 3s, {}),
            "\rddprun: waiting at h:1 for 3 s: no word from the host yet\033[K");
  rendezvous::WaitStatus wait_status{.awaits = rendezvous::Await::kLastCall,
                                     .have = 3,
                                     .min_nodes = 2,
                                     .max_nodes = 4,
                                     .ends_in = 11'001ms};
  EXPECT_EQ(terminal.waiting("h:1", 4s, wait_status),
            "\rddprun: waiting at h:1 for 4 s: have 3 of 2:4 nodes, last call ends in 12 s\033[K");
  wait_status = {.awaits = rendezvous::Await::kSeat, .have = 2, .min_nodes = 2, .max_nodes = 2};
  EXPECT_TRUE(terminal.waiting("h:1", 4s, wait_status).ends_with("this node is a spare\033[K"));
  wait_status.awaits = rendezvous::Await::kResize;
  wait_status.ends_in = 30s;
  EXPECT_TRUE(
      terminal.waiting("h:1", 4s, wait_status).ends_with("the job takes newcomers in 30 s\033[K"));
  wait_status = {.have = 1, .min_nodes = 3, .max_nodes = 3, .ends_in = 600s, .missing = "0, 2"};
  EXPECT_EQ(terminal.waiting("h:1", 5s, wait_status),
            "\rddprun: waiting at h:1 for 5 s: have 1 of 3 nodes, giving up in 600 s, missing node "
            "rank 0, 2\033[K");
  EXPECT_EQ(terminal.waited(), "\n");
  EXPECT_EQ(terminal.waited(), "");
}

TEST(Notices, TellsWhyNoHostIsReached) {
  const NoHost refused{55s, "ipv4:10.0.0.1:29400: Failed to connect\n to host: Connection refused"};
  const Notices log("ddprun", false, false);
  EXPECT_EQ(
      log.still_waiting("h:1", 5s, std::nullopt, refused),
      "ddprun: waiting for nodes at h:1 for 5 s: no host has answered yet, giving up in 55 s: "
      "ipv4:10.0.0.1:29400: Failed to connect  to host: Connection refused\n");
  EXPECT_EQ(
      log.still_waiting("h:1", 5s, std::nullopt, {0s, ""}),
      "ddprun: waiting for nodes at h:1 for 5 s: no host has answered yet, giving up in 0 s\n");
  EXPECT_EQ(log.still_waiting("h:1", 5s, std::nullopt, {}),
            "ddprun: waiting for nodes at h:1 for 5 s: no word from the host yet\n");
  // A host that has let this node in says what is awaited.
  EXPECT_NE(log.still_waiting("h:1", 5s, rendezvous::WaitStatus{.have = 1}, refused).find("have 1"),
            std::string::npos);
  EXPECT_EQ(Notices("ddprun", true, false).still_waiting("h:1", 5s, std::nullopt, refused), "");
  // On a terminal it is short: a line that wraps cannot be written over.
  Notices terminal("ddprun", false, true);
  EXPECT_EQ(
      terminal.waiting("h:1", 4s, std::nullopt, refused),
      "\rddprun: waiting at h:1 for 4 s: no word from the host yet (Connection refused)\033[K");
  EXPECT_EQ(terminal.waiting("h:1", 4s, std::nullopt, {9s, std::string(50, 'x')}),
            "\rddprun: waiting at h:1 for 4 s: no word from the host yet (" + std::string(40, 'x') +
                "…)\033[K");
}

}  // namespace
}  // namespace ddprun::agent
