// Who is let in by a host, and who is not.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/rendezvous/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

// A client that sends what an HTTP/2 client sends first, and no more.
struct Stranger {
  Stranger(asio::io_context& loop, std::uint16_t port) : socket(loop) {
    socket.connect({boost::asio::ip::address_v4::loopback(), port});
    asio::write(socket, asio::buffer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
    read();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    boost::system::error_code ignored;
    socket.close(ignored);
  }
  void read() {
    socket.async_read_some(asio::buffer(bytes),
                           [this](boost::system::error_code failed, std::size_t) {
                             if (failed == asio::error::operation_aborted) return;
                             if (failed) {
                               closed = true;
                             } else {
                               greeted = true;
                               read();
                             }
                           });
  }

  tcp::socket socket;
  std::array<char, 256> bytes{};
  bool greeted = false;  // the host's first frame came
  bool closed = false;
};

TEST_F(RemoteTest, RefusesAWrongOrMissingToken) {
  HostSide side(loop, 1);
  for (const char* token : {"", "wrong!", "secret2", "secre"}) {
    RemoteOptions options = to(side.port());
    options.token = token;
    TestNode node;
    join(node, options, make_node("a"));
    ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); })) << token;
    EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
    EXPECT_EQ(node.error(), "rendezvous at 127.0.0.1:" + std::to_string(side.port()) +
                                ": refused: the job's token is missing or wrong");
  }
}

TEST_F(RemoteTest, RefusesANodeOfAnotherJob) {
  HostSide side(loop, 1, {.token = "secret", .rdzv_id = "job one"});
  RemoteOptions options = to(side.port());
  options.rdzv_id = "job \xE9 two";
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  EXPECT_NE(node.error().find("rdzv_id=job one, not job \xE9 two"), std::string::npos)
      << node.error();
  options.rdzv_id = "job one";
  TestNode right;
  join(right, options, make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&right})) << right.error();
}

// The user set no token, so the job's id is the token of each node.
TEST_F(RemoteTest, TellsANodeOfAnotherJobWhatIsWrongThoughItsIdIsItsToken) {
  HostSide side(loop, 1, {.token = "mine", .rdzv_id = "mine"});
  RemoteOptions options = to(side.port());
  options.token = options.rdzv_id = "theirs";
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  // The error does not name the id that the host serves: it is the token.
  EXPECT_EQ(node.error(), "rendezvous at 127.0.0.1:" + std::to_string(side.port()) +
                              ": refused: it serves another job than the one with rdzv_id=theirs");
}

TEST_F(RemoteTest, TakesAnyBytesAsIdAndToken) {
  const std::string id =
      "\xC3\xBC"
      "bung\n\x01 " +
      std::string(1, '\0') + "\xFF";
  const std::string longest(4096, '\xFE');
  for (const std::string& token : {id, longest}) {
    HostSide side(loop, 1, {.token = token, .rdzv_id = id});
    RemoteOptions options = to(side.port());
    options.token = token;
    options.rdzv_id = id;
    TestNode node;
    join(node, options, make_node("a"));
    EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
    options.token = token.substr(1);
    TestNode wrong;
    join(wrong, options, make_node("b"));
    ASSERT_TRUE(run_until(loop, [&] { return wrong.last_is<SessionLost>(); }));
    EXPECT_TRUE(wrong.lost_for(ErrorCode::kRejected)) << wrong.error();
  }
}

TEST_F(RemoteTest, RefusesOptionsThatNoHostCouldRead) {
  RemoteOptions options = to(1);
  options.token = std::string(4097, 'x');
  TestNode node;
  open_session(node, options);
  EXPECT_TRUE(node.messages.empty());  // it is posted, as all messages are
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kInvalidArgument));
  options = to(1);
  options.rdzv_id = std::string(256, 'x');
  open_session(node, options);
  EXPECT_TRUE(run_until(loop, [&] { return node.messages.size() == 2; }));
  EXPECT_NE(node.error().find("rdzv_id has 256 bytes"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, SurvivesClientsThatSendGarbage) {
  HostSide side(loop, 1);
  std::vector<tcp::socket> strangers;
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(4096, '\xFF'),
        std::string("P"), std::string("POST / HTTP/1.1\r\n\r\n"), std::string()}) {
    strangers.emplace_back(loop);
    strangers.back().connect({boost::asio::ip::address_v4::loopback(), side.port()});
    asio::write(strangers.back(), asio::buffer(bytes));
  }
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

TEST_F(RemoteTest, WarnsOnceOfManyRefusals) {
  HostSide side(loop, 1);
  RemoteOptions options = to(side.port());
  options.token = "wrong";
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    TestNode node;
    join(node, options, make_node("a"));
    EXPECT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string warning = "rendezvous: refused a connection from 127.0.0.1: the job's token";
  const auto first = log.find(warning);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(warning, first + 1), std::string::npos) << log;
}

TEST_F(RemoteTest, CutsTheOldestOfTooManyConnectionsButNoNode) {
  HostSide side(loop, 1, {.token = "secret", .max_strangers = 3});
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.push_back(std::make_unique<Stranger>(loop, side.port()));
    ASSERT_TRUE(run_until(loop, [&] { return strangers.back()->greeted; }));
  }
  EXPECT_FALSE(strangers[0]->closed);
  Stranger one_more(loop, side.port());
  ASSERT_TRUE(run_until(loop, [&] { return strangers[0]->closed && one_more.greeted; }));
  EXPECT_FALSE(strangers[1]->closed || strangers[2]->closed || one_more.closed);
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node})) << node.error();
}

}  // namespace
}  // namespace ddprun::rendezvous
