// A node's own socket: one question, one answer, and an end to both.
#include "rendezvous/control/node_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/control/codec.h"
#include "rendezvous/control/local_socket.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

// A socket under a pid that no process has, whose loop another thread runs.
class NodeSocketTest : public testing::Test {
 protected:
  void serve(NodeSocket::Handler handler, int most_callers = NodeSocket::kMostCallers) {
    socket = std::make_unique<NodeSocket>(loop, pid, std::move(handler), most_callers);
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

// Returns the answer of the socket to these bytes.
std::string answer_to(int fd, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t now = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno != EAGAIN) break;  // it has hung up
    sent += static_cast<std::size_t>(std::max<ssize_t>(now, 0));
  }
  ::shutdown(fd, SHUT_WR);
  std::string answer(4096, '\0');
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&one, 1, -1);
  const ssize_t got = ::recv(fd, answer.data(), answer.size(), 0);
  ::close(fd);
  answer.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return answer;
}

TEST_F(NodeSocketTest, NonsenseIsRefusedAndTooMuchIsCutOff) {
  serve([](const ControlQuestion&, const NodeSocket::Reply& reply) { reply({.text = "t"}); });
  control::v2::Answer answer;
  ASSERT_TRUE(answer.ParseFromString(answer_to(connected(), "\xff\xff\xff")));
  EXPECT_EQ(decode(answer)->outcome, ControlOutcome::kRefused);
  EXPECT_EQ(answer_to(connected(), std::string(std::size_t{1} << 20, '\xff')), "");
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

// It is stopped, mostly.
TEST(NodeSocketName, IsBusyWhereTheQueueIsFull) {
  const std::string name = new_node_socket_name(1 << 30 | ::getpid());
  const auto listening = listen_locally(name);
  ASSERT_TRUE(listening);
  std::vector<int> waiting;
  int last = 0;
  while ((last = connect_to_node(name)) >= 0) waiting.push_back(last);
  EXPECT_EQ(last, kBusyNode);
  for (const int fd : waiting) ::close(fd);
  ::close(*listening);
  EXPECT_EQ(connect_to_node(name), -1) << "it is gone";
}

// The handler may ask things that are gone then.
TEST_F(NodeSocketTest, NobodyIsHeardAfterItsEnd) {
  std::atomic<bool> is_heard = false;
  serve([&](const ControlQuestion&, const NodeSocket::Reply& reply) {
    is_heard = true;
    reply({.text = "t"});
  });
  const int fd = connected();
  // A caller that came later is answered: the first one has been accepted.
  ASSERT_EQ(ask_node(connected(), {"j", ShowJobs{}}, seconds(20)).outcome, ControlOutcome::kDone);
  is_heard = false;
  std::promise<void> ended;
  boost::asio::post(loop, [&] {
    socket.reset();
    ended.set_value();
  });
  ended.get_future().wait();
  EXPECT_EQ(ask_node(fd, {"j", ShowJobs{}}, seconds(20)).outcome, ControlOutcome::kUnreachable);
  EXPECT_FALSE(is_heard);
}

TEST_F(NodeSocketTest, TooManyCallersAreTurnedAway) {
  constexpr int kMost = 2;
  serve([](const ControlQuestion&, const NodeSocket::Reply& reply) { reply({.text = "t"}); },
        kMost);
  std::vector<int> open(kMost);
  for (int& fd : open) fd = connected();
  const auto refused = ask_node(connected(), {"j", ShowJobs{}}, seconds(20));
  EXPECT_EQ(refused.outcome, ControlOutcome::kUnreachable);
  for (const int fd : open)
    EXPECT_EQ(ask_node(fd, {"j", ShowJobs{}}, seconds(20)).outcome, ControlOutcome::kDone);
}

}  // namespace
}  // namespace ddprun::rendezvous
