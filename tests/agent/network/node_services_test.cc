// The host of a static job of several nodes: one port for rendezvous and store, kept over all
// rounds.
#include "agent/network/node_services.h"

#include <gtest/gtest.h>

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "base/net/addresses.h"
#include "rendezvous/grpc/client.h"

namespace ddprun::agent {
namespace {

using asio::ip::tcp;
using rendezvous::HostMessage;
using rendezvous::NodeSpec;
using rendezvous::RoundBroken;
using rendezvous::RoundPublished;

// VALIDATE and a PING of store/wire.h, and the PING's answer.
const std::string kHello("\x00\xce\xf7\x85\x3c\x0dping", 10);
const std::string kEcho = "ping";

// How often a node heard of rounds.
struct Heard {
  int published = 0;
  int broken = 0;

  void operator()(const HostMessage& message) {
    if (std::holds_alternative<RoundPublished>(message)) ++published;
    if (std::holds_alternative<RoundBroken>(message)) ++broken;
  }
};

class NodeServicesTest : public testing::Test {
 protected:
  NodeServicesTest() {
    spawn(loop, "open", [](NodeServicesTest* self) -> asio::awaitable<void> {
      const auto done =
          co_await self->services.open([self](const HostMessage& message) { self->here(message); });
      self->opened = done.has_value();
    }(this));
    run_until([this] { return opened; });
    store = services.prepare_store().value();
  }

  static RendezvousPlan plan() {
    return {
        .kind = RendezvousPlan::Kind::kStatic, .min_nodes = 2, .max_nodes = 2, .token = "secret"};
  }
  static NodeSpec node(int rank) {
    return {.node_id = std::to_string(rank), .node_rank = rank, .max_restarts = 1};
  }

  // Runs the loop until `done`; fails after the deadline.
  template <typename Done>
  void run_until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds(100));
    }
    ASSERT_TRUE(done());
  }

  tcp::socket connect() {
    tcp::socket socket(loop);
    socket.connect({asio::ip::make_address(store.host), store.port});
    return socket;
  }

  // Returns the store's answer to kHello; nothing where it closed the connection.
  std::string greet(tcp::socket& socket) {
    boost::system::error_code closed;
    asio::write(socket, asio::buffer(kHello), closed);
    std::string answer(kEcho.size(), '\0');
    bool over = false;
    asio::async_read(socket, asio::buffer(answer),
                     [&](boost::system::error_code error, std::size_t) {
                       if (error) answer.clear();
                       over = true;
                     });
    run_until([&] { return over; });
    return answer;
  }

  asio::io_context loop{1};
  NodeServices services{loop, plan()};
  bool opened = false;
  Heard here;
  StoreAddress store;
};

TEST_F(NodeServicesTest, NoConnectionOfAnOldAttemptReachesTheStoreOfTheNext) {
  Heard heard_there;
  const auto there = rendezvous::open_remote_session(
      loop, {.host = store.host, .port = store.port, .token = {rendezvous::key_of_token("secret")}},
      [&](const HostMessage& message) { heard_there(message); });
  services.session().join(node(0));
  there->join(node(1));
  run_until([&] { return here.published == 1 && heard_there.published == 1; });
  tcp::socket served = connect();
  EXPECT_EQ(greet(served), kEcho);
  tcp::socket silent = connect();  // connected, and has not said what it is
  tcp::socket behind = connect();
  EXPECT_EQ(greet(behind), kEcho);  // so the silent one was accepted
  there->report_failure(1, {.hostname = "there", .exit_code = 1});
  run_until([&] { return here.broken == 1 && heard_there.broken == 1; });
  services.session().join(node(0));
  there->join(node(1));
  run_until([&] { return here.published == 2 && heard_there.published == 2; });
  EXPECT_EQ(greet(served), "");
  EXPECT_EQ(greet(silent), "");
  tcp::socket fresh = connect();
  EXPECT_EQ(greet(fresh), kEcho);
}

// Returns the error of open() for a plan; nothing where it is served or looked for.
std::optional<std::string> refusal_of(const RendezvousPlan& plan) {
  asio::io_context loop{1};
  NodeServices services{loop, plan};
  std::optional<Result<void>> opened;
  spawn(loop, "open",
        [](NodeServices& node, std::optional<Result<void>>& said) -> asio::awaitable<void> {
          said = co_await node.open([](const HostMessage&) {});
        }(services, opened));
  while (!opened) loop.run_one();
  if (*opened) return std::nullopt;
  return opened->error().message();
}

TEST(NodeServices, RefuseToHostWhereTheSchedulersFirstHostIsAnother) {
  RendezvousPlan plan{.kind = RendezvousPlan::Kind::kC10d,
                      .min_nodes = 2,
                      .max_nodes = 2,
                      .host = "192.0.2.1",  // nobody's (RFC 5737)
                      .port = 28992,
                      .port_count = 8,
                      .is_host = true,
                      .run_id = "mpi-8",
                      .token = "secret"};
  const std::string here = host_name();
  EXPECT_EQ(
      refusal_of(plan),
      "192.0.2.1 is the first host by MASTER_ADDR or the scheduler's list, and node rank 0 runs "
      "on " +
          here + ", which does not have its address 192.0.2.1: hand MASTER_ADDR=" + here +
          " on to all nodes (`mpirun -x MASTER_ADDR=" + here +
          " …`), or type --nnodes=2 --rdzv-backend=c10d --rdzv-id=mpi-8 --rdzv-endpoint=" + here +
          ":28992");
  plan.is_host = false;
  EXPECT_EQ(refusal_of(plan), std::nullopt);
  // By flags it may be a cluster's virtual address.
  plan.is_host = true;
  plan.port_count = 1;
  plan.port = 0;
  EXPECT_EQ(refusal_of(plan), std::nullopt);
  plan.host = "127.0.0.1";
  plan.port = 28992;
  plan.port_count = 8;
  EXPECT_EQ(refusal_of(plan), std::nullopt);
}

}  // namespace
}  // namespace ddprun::agent
