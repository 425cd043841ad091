// A node's own socket: one question, one answer, and an end to both.
#include "rendezvous/control/node_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/control/local_socket.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

// A socket under a pid that no process has, whose loop another thread runs.
class NodeSocketTest : public testing::Test {
 protected:
  void serve(NodeSocket::Handler handler) {
    socket = std::make_unique<NodeSocket>(loop, pid, std::move(handler));
    thread = std::thread([this] { loop.run(); });
  }
  void TearDown() override {
    boost::asio::post(loop, [this] {
      socket.reset();
      loop.stop();
    });
    thread.join();
  }
  int connected() const {
    const auto names = node_sockets_of_host();
    const auto own = std::ranges::find(names, pid, &NodeSocketName::pid);
    return own == names.end() ? -1 : connect_to_node(own->name);
  }

  const pid_t pid = 1 << 30 | ::getpid();
  boost::asio::io_context loop;
  std::unique_ptr<NodeSocket> socket;
  std::thread thread;
};

TEST_F(NodeSocketTest, AnswersOneQuestionAConnection) {
  serve([](const ControlQuestion& question, const NodeSocket::Reply& reply) {
    const auto& ranks = std::get<ShowStacks>(question.verb).ranks;
    reply({.text = question.job, .stacks = {{.rank = ranks.at(0)}}});
  });
  for (const int rank : {7, 8}) {
    const int fd = connected();
    ASSERT_GE(fd, 0);
    const auto answer = ask_node(fd, {"j", ShowStacks{{rank}}}, seconds(20));
    EXPECT_EQ(answer.outcome, ControlOutcome::kDone);
    EXPECT_EQ(answer.text, "j");
    ASSERT_EQ(answer.stacks.size(), 1U);
    EXPECT_EQ(answer.stacks[0].rank, rank);
  }
}

TEST_F(NodeSocketTest, ABigAnswerArrivesWhole) {
  std::vector<RankStack> many(2'000);
  for (std::size_t i = 0; i < many.size(); ++i)
    many[i] = {.rank = static_cast<int>(i), .frames = {40, {"function", "/a/file.py", 7}}};
  serve([&](const ControlQuestion&, const NodeSocket::Reply& reply) { reply({.stacks = many}); });
  const auto answer = ask_node(connected(), {"j", ShowStacks{}}, seconds(60));
  EXPECT_EQ(answer.stacks, many);
}

TEST_F(NodeSocketTest, NonsenseIsRefusedAndTooMuchIsCutOff) {
  serve([](const ControlQuestion&, const NodeSocket::Reply& reply) { reply({.text = "t"}); });
  for (const std::size_t size : {std::size_t{3}, std::size_t{1} << 20}) {
    const int fd = connected();
    const std::string bytes(size, '\xff');
    for (std::size_t sent = 0; sent < size;) {
      const ssize_t now = ::send(fd, bytes.data(), bytes.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno != EAGAIN) break;  // it has hung up
      sent += static_cast<std::size_t>(std::max<ssize_t>(now, 0));
    }
    ::shutdown(fd, SHUT_WR);
    const auto answer = ask_node(fd, {"j", ShowJobs{}}, seconds(20));
    EXPECT_NE(answer.outcome, ControlOutcome::kDone) << size;
  }
  EXPECT_EQ(ask_node(connected(), {"j", ShowJobs{}}, seconds(20)).outcome, ControlOutcome::kDone);
}

TEST_F(NodeSocketTest, AnAnswerThatNeverComesIsNotWaitedForLong) {
  std::promise<NodeSocket::Reply> kept;
  serve([&](const ControlQuestion&, NodeSocket::Reply reply) { kept.set_value(std::move(reply)); });
  const auto answer = ask_node(connected(), {"j", ShowJobs{}}, std::chrono::milliseconds(50));
  EXPECT_EQ(answer.outcome, ControlOutcome::kUnreachable);
  // It comes after all, and nobody listens.
  boost::asio::post(loop, [reply = kept.get_future().get()] { reply({.text = "t"}); });
}

TEST_F(NodeSocketTest, TooManyCallersAreTurnedAway) {
  serve([](const ControlQuestion&, const NodeSocket::Reply& reply) { reply({.text = "t"}); });
  std::vector<int> open;
  for (int i = 0; i < NodeSocket::kMostCallers; ++i) open.push_back(connected());
  const auto refused = ask_node(connected(), {"j", ShowJobs{}}, seconds(20));
  EXPECT_EQ(refused.outcome, ControlOutcome::kUnreachable);
  for (const int fd : open)
    EXPECT_EQ(ask_node(fd, {"j", ShowJobs{}}, seconds(20)).outcome, ControlOutcome::kDone);
}

}  // namespace
}  // namespace ddprun::rendezvous
