// --exit-map: its text, and the code that each ending gets.
#include "agent/core/exit_map.h"

#include <gtest/gtest.h>

#include <csignal>

#include "agent/core/lifecycle.h"

namespace ddprun::agent {
namespace {

TEST(ParseExitMap, TakesEntriesOfALineOrOfAFile) {
  const ExitMap map = *parse_exit_map("ValueError:42, signal:SIGKILL:137,exit:3:0,preempted:85");
  EXPECT_EQ(
      map,
      (ExitMap{{"ValueError", 42}, {"signal:SIGKILL", 137}, {"exit:3", 0}, {"preempted", 85}}));
  EXPECT_EQ(*parse_exit_map("# of the queue\nhang : 75  # again\n\nnode:76\r\n"),
            (ExitMap{{"hang", 75}, {"node", 76}}));
  EXPECT_TRUE(parse_exit_map("")->empty());
  for (const std::string_view word : kExitWords)
    EXPECT_TRUE(parse_exit_map(std::string(word) + ":7")) << word;
}

TEST(ParseExitMap, NamesABadEntry) {
  for (const char* bad : {"ValueError", "ValueError:", ":3", "ValueError:256", "ValueError:-1",
                          "ValueError:x", "valueerror:3", "signal:KILL:3", "signal:SIGNO:3",
                          "exit:300:3", "exit::3", "Value Error:3", "hang:1:2"}) {
    const auto map = parse_exit_map(std::string("node:1,") + bad);
    ASSERT_FALSE(map) << bad;
    EXPECT_TRUE(map.error().message().starts_with("'" + std::string(bad) + "': expected KEY:CODE"))
        << map.error().message();
  }
  const std::string longest = parse_exit_map("\x1b[2J" + std::string(9999, 'x')).error().message();
  EXPECT_LT(longest.size(), 400U);
  EXPECT_EQ(longest.find('\x1b'), std::string::npos);
}

Ending failed(rendezvous::Failure cause) { return {.cause = std::move(cause)}; }

TEST(MappedCode, IsThatOfTheClosestReason) {
  const rendezvous::Failure value_error{.rank = 1, .exit_code = 1, .words = "ValueError: x"};
  const rendezvous::Failure killed{.rank = 1, .exit_code = -SIGKILL};
  const rendezvous::Failure hung{.rank = 1, .exit_code = -SIGABRT, .is_hang = true};
  const rendezvous::Failure three{.rank = 1, .exit_code = 3, .words = "exit: three"};
  const rendezvous::Failure lost{.hostname = "n1", .message = "lost"};
  const rendezvous::Failure told{.hostname = "n1", .exit_code = -SIGTERM};
  Ending stuck = failed(value_error);
  stuck.no_progress = rendezvous::NoProgress{};
  const Error timed_out(ErrorCode::kTimedOut, "x");
  const struct {
    const char* map;
    Ending ending;
    int max_restarts;
    std::optional<int> code;
  } cases[] = {
      {"ValueError:42,failed:1", failed(value_error), 0, 42},
      {"exit:1:7,failed:1", failed(value_error), 0, 7},
      {"TypeError:42", failed(value_error), 0, std::nullopt},
      {"failed:9", failed(value_error), 3, 9},
      {"no-restart:8,failed:9", failed(value_error), 3, 8},
      {"no-restart:8,failed:9", failed(value_error), 0, 9},
      {"no-restart:8,failed:9", failed({.rank = 1, .exit_code = 3, .ends_job = true}), 3, 9},
      {"no-progress:93,ValueError:42", stuck, 3, 93},
      {"ValueError:42", stuck, 3, 42},
      {"signal:SIGKILL:137", failed(killed), 0, 137},
      {"signal:SIGABRT:6,hang:75", failed(hung), 0, 75},
      {"signal:SIGABRT:6", failed(hung), 0, 6},
      {"exit:3:30", failed(three), 0, 30},
      {"node:76,failed:1", failed(lost), 0, 76},
      {"node:76,preempted:85", failed(told), 0, 85},
      {"preempted:85,failed:1", {.signal = SIGTERM, .cause = killed}, 0, 85},
      {"preempted:85", {.stopped = true}, 0, 85},
      {"rendezvous:5,node:76", {.session_error = timed_out}, 0, 5},
      {"node:76", {.session_error = timed_out}, 0, 76},
      {"launcher:6", {.launcher_failed = true, .cause = lost}, 0, 6},
      {"failed:1,preempted:85,node:76", {.succeeded = true}, 0, std::nullopt},
      {"failed:1,preempted:85,node:76", {.drained = true}, 0, std::nullopt},
  };
  for (const auto& [text, ending, max_restarts, code] : cases)
    EXPECT_EQ(mapped_code(*parse_exit_map(text), ending, max_restarts), code) << text;
}

}  // namespace
}  // namespace ddprun::agent
