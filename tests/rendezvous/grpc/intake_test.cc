#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/grpc/connections.h"
#include "rendezvous/trust/http2_frame.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;
using namespace std::chrono_literals;
constexpr auto kDeadline = 30s;

// A host whose gRPC is this test: it gets connections, and says which of them proved themselves.
struct IntakeTest : testing::Test {
  ~IntakeTest() override {
    for (const int fd : handed_on) ::close(fd);
  }
  // Nodes connect and send what a node begins with.
  void come(int count) {
    for (int i = 0; i < count; ++i) {
      nodes.emplace_back(loop).connect(acceptor.local_endpoint());
      boost::asio::write(nodes.back(), boost::asio::buffer(beginning));
      intake.take(acceptor.accept().release(), Connections::Way::kClear);
    }
  }
  // Those that gRPC has now prove themselves.
  void prove() {
    const std::vector<int> now = handed_on;
    for (const int fd : now)
      if (std::ranges::find(proven, fd) == proven.end()) {
        proven.push_back(fd);
        intake.admitted("fd:" + std::to_string(fd));
      }
  }
  // Returns the bytes that the host has sent to this node.
  static std::string received(tcp::socket& node) {
    std::array<char, 100> bytes{};
    const auto count = ::recv(node.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }
  template <typename Condition>
  bool run_until(Condition holds) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!holds() && std::chrono::steady_clock::now() < end) loop.run_one_for(100ms);
    return holds();
  }

  boost::asio::io_context loop;
  tcp::acceptor acceptor{loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  const std::string greeting = write_frame(Http2Kind::kSettings, 0, 0);
  const std::string beginning = std::string(kHttp2Preface) + greeting;
  Connections connections{100};
  Refusals refusals;
  std::vector<int> handed_on;
  std::vector<int> proven;
  std::vector<tcp::socket> nodes;
  Intake intake{loop,
                {{.served = 2, .failures_at_once = 2, .earned = 2}, false},
                connections,
                refusals,
                [this](int fd, Connections::Way) { handed_on.push_back(fd); }};
};

TEST_F(IntakeTest, AProofLetsTheNextOnesIn) {
  come(8);
  EXPECT_EQ(handed_on.size(), 2U);
  prove();
  EXPECT_TRUE(run_until([this] { return handed_on.size() == 6; }));
  prove();
  EXPECT_TRUE(run_until([this] { return handed_on.size() == 8; }));
}

// gRPC's client takes a host that says nothing for 3 s for none, and connects anew.
TEST_F(IntakeTest, ANodeThatWaitsLongIsGreetedWhileOthersProveThemselves) {
  come(20);
  prove();
  ASSERT_TRUE(run_until([this] { return handed_on.size() == 6; }));
  EXPECT_EQ(received(nodes[10]), "") << "not at once";
  std::string said;
  EXPECT_TRUE(run_until([&] { return !(said += received(nodes[10])).empty(); }));
  EXPECT_EQ(said, greeting);
  EXPECT_EQ(received(nodes[0]), "") << "gRPC has it, and greets it";
}

}  // namespace
}  // namespace ddprun::rendezvous
