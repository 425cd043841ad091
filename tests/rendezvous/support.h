// The common parts of the tests with a loop. A loop runs until something holds, and a node keeps
// the messages it got. On the test's thread only.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

inline constexpr std::chrono::seconds kTestLimit{40};

// Runs `loop` until `holds()` is true, at most for `limit`. Returns whether it is true then.
template <typename Condition>
bool run_until(boost::asio::io_context& loop, Condition holds,
               std::chrono::milliseconds limit = kTestLimit) {
  loop.restart();  // the loop stopped when the last work guard ended
  const auto work = boost::asio::make_work_guard(loop);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!holds() && std::chrono::steady_clock::now() < deadline) loop.run_one_until(deadline);
  return holds();
}

inline NodeSpec make_node(const std::string& id, int max_restarts = 0) {
  NodeSpec spec;
  spec.node_id = id;
  spec.hostname = "host-" + id;
  spec.store_port = 4000;
  spec.max_restarts = max_restarts;
  return spec;
}

inline Failure make_failure(const std::string& message) {
  return {.hostname = "h", .rank = 0, .local_rank = 0, .exit_code = 1, .message = message};
}

// A node. It must not move and must outlive its session: the handler refers to it.
struct TestNode {
  std::unique_ptr<Session> session;
  std::vector<HostMessage> messages;

  TestNode() = default;
  TestNode(const TestNode&) = delete;
  TestNode& operator=(const TestNode&) = delete;
  ~TestNode() = default;

  Session::MessageHandler handler() {
    return [this](HostMessage one) { messages.push_back(std::move(one)); };
  }
  template <typename Kind>
  bool last_is() const {
    return !messages.empty() && std::holds_alternative<Kind>(messages.back());
  }
  template <typename Kind>
  const Kind& last() const {
    return std::get<Kind>(messages.back());
  }
  bool lost_for(ErrorCode code) const {
    return last_is<SessionLost>() && last<SessionLost>().error.code() == code;
  }
  std::string error() const {
    return last_is<SessionLost>() ? last<SessionLost>().error.message() : "(no error)";
  }
};

}  // namespace ddprun::rendezvous
