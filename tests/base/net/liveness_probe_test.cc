// Whether a process lives, by a port on which it listens.
#include "base/net/liveness_probe.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "tests/rendezvous/grpc/relay.h"
#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

struct LivenessProbeTest : testing::Test {
  asio::io_context loop{1};
  int refusals = 0;

  void begin(std::uint16_t port) { begin(std::vector{at(port)}); }
  void begin(const std::vector<tcp::endpoint>& ports) {
    probe.emplace(loop, ports, [this] { ++refusals; });
  }
  static tcp::endpoint at(std::uint16_t port) { return {asio::ip::address_v4::loopback(), port}; }
  std::uint16_t closed_port() {
    return Listener(loop, [](const tcp::socket&) {}).port();
  }
  std::optional<LivenessProbe> probe;
};

TEST_F(LivenessProbeTest, ARefusedConnectionMeansADeadProcess) {
  std::uint16_t port = 0;
  {
    port = Listener(loop, [](const tcp::socket&) {}).port();
  }
  begin(port);
  EXPECT_TRUE(run_until(loop, [&] { return refusals == 1; }));
}

// The port of a process that dies may be closed after the connection that ended.
TEST_F(LivenessProbeTest, NoticesAPortThatIsClosedLater) {
  std::vector<tcp::socket> taken;
  std::optional<Listener> listener;
  listener.emplace(loop, [&](tcp::socket socket) { taken.push_back(std::move(socket)); });
  begin(listener->port());
  ASSERT_TRUE(run_until(loop, [&] { return taken.size() == 1; }));
  EXPECT_EQ(refusals, 0);
  listener.reset();
  taken.clear();
  EXPECT_TRUE(run_until(loop, [&] { return refusals == 1; }));
}

TEST_F(LivenessProbeTest, DoesNotProbeForEver) {
  int taken = 0;
  const auto began = std::chrono::steady_clock::now();
  Listener listener(loop, [&](const tcp::socket&) { ++taken; });  // hangs up at once
  begin(listener.port());
  ASSERT_TRUE(run_until(loop, [&] { return taken == kMostProbes; }));
  EXPECT_GE(std::chrono::steady_clock::now() - began, 10 * kProbePause) << "it pauses between them";
  EXPECT_FALSE(run_until(
      loop, [&] { return taken > kMostProbes; }, std::chrono::milliseconds(20)));
  EXPECT_EQ(refusals, 0);
}

TEST_F(LivenessProbeTest, AllPortsMustRefuse) {
  std::vector<tcp::socket> taken;
  Listener other(loop, [&](tcp::socket socket) { taken.push_back(std::move(socket)); });
  const std::uint16_t closed = closed_port();
  begin({at(closed), at(other.port())});
  ASSERT_TRUE(run_until(loop, [&] { return taken.size() == 1; }));
  EXPECT_FALSE(run_until(
      loop, [&] { return refusals > 0; }, std::chrono::milliseconds(20)));
  begin({at(closed), at(closed_port())});
  EXPECT_TRUE(run_until(loop, [&] { return refusals == 1; }));
}

TEST_F(LivenessProbeTest, WithoutAPortNothingIsFoundOut) {
  begin(std::vector<tcp::endpoint>{});
  EXPECT_FALSE(run_until(
      loop, [&] { return refusals > 0; }, std::chrono::milliseconds(20)));
}

TEST_F(LivenessProbeTest, KnowsThePortsThatTookAConnection) {
  int taken = 0;
  Listener listener(loop, [&](const tcp::socket&) { ++taken; });
  const std::uint16_t closed = closed_port();
  const ProbedPorts ports(loop, {at(closed), at(listener.port())});
  EXPECT_TRUE(run_until(loop, [&] { return taken == 1 && ports.taken().size() == 1; }));
  EXPECT_EQ(ports.taken(), std::vector{at(listener.port())});
}

// It hangs up before this loop looks: the connection looks like one that failed.
TEST_F(LivenessProbeTest, APortThatHangsUpAtOnceIsKnown) {
  tcp::acceptor acceptor(loop, at(0));
  const ProbedPorts ports(loop, {acceptor.local_endpoint()});
  tcp::socket taken = acceptor.accept();
  taken.set_option(asio::socket_base::linger(true, 0));  // by a reset
  taken.close();
  EXPECT_TRUE(run_until(loop, [&] { return ports.taken().size() == 1; }));
}

// A firewall's refusal is no word of the host behind it. Each in a network of its own, where we may
// have one.
enum class Firewall { kNone, kIcmp, kIcmp6 };
class ProbeBehindAFirewall : public testing::TestWithParam<Firewall> {};

// Runs in a child, which may leave our network. Returns whether the host itself refused; nothing
// where there can be no such network.
std::optional<bool> is_refused_behind(Firewall firewall) {
  if (::unshare(CLONE_NEWNET) != 0 || std::system("ip link set lo up 2>/dev/null") != 0)
    return std::nullopt;
  const bool is_v6 = firewall == Firewall::kIcmp6;
  const std::string rules =
      "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
      "add rule inet t c tcp dport 4000 tcp flags syn reject with " +
      std::string(is_v6 ? "icmpv6 type port-unreachable" : "icmp type port-unreachable") +
      "' 2>/dev/null";
  if (firewall != Firewall::kNone && std::system(rules.c_str()) != 0) return std::nullopt;
  asio::io_context loop{1};
  tcp::endpoint to(asio::ip::address_v4::loopback(), 4000);
  if (is_v6) to.address(asio::ip::address_v6::loopback());
  tcp::socket socket = open_socket(loop, to);
  std::optional<bool> is_refused;
  socket.async_connect(to, [&](const boost::system::error_code& failed) {
    if (failed == asio::error::connection_refused) is_refused = is_refused_by_host(socket, failed);
  });
  run_until(
      loop, [&] { return is_refused.has_value(); }, std::chrono::seconds(5));
  return is_refused;
}

// Runs in a child: a firewall resets all connections to a port for a while. 0: as it should be; 2:
// there can be no such network.
int outlive_resets() {
  constexpr const char* kRules =
      "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
      "add rule inet t c tcp dport 4000 reject with tcp reset' 2>/dev/null";
  if (::unshare(CLONE_NEWNET) != 0 || std::system("ip link set lo up 2>/dev/null") != 0) return 2;
  asio::io_context loop{1};
  const tcp::endpoint to(asio::ip::address_v4::loopback(), 4000);
  tcp::acceptor acceptor(loop, to);
  if (std::system(kRules) != 0) return 2;
  int refusals = 0;
  int taken = 0;
  const LivenessProbe probe(loop, {to}, [&] { ++refusals; });
  const auto half_a_second = std::chrono::milliseconds(500);
  if (run_until(
          loop, [&] { return refusals > 0; }, half_a_second))
    return 3;
  if (std::system("nft delete table inet t") != 0) return 4;
  acceptor.async_accept([&](const boost::system::error_code&, const tcp::socket&) {
    ++taken;
    acceptor.close();
  });
  if (!run_until(loop, [&] { return taken > 0; })) return 5;
  return run_until(loop, [&] { return refusals > 0; }) ? 0 : 6;  // dead at last
}

TEST(ProbeBehindResets, ForAWhileTheProcessIsNotTakenForDead) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(outlive_resets());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2)
    GTEST_SKIP() << "needs root, ip(8) and nft(8), for a network of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(ProbeBehindAFirewall, ToldApartFromTheHost) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto is_refused = is_refused_behind(GetParam());
    ::_exit(is_refused ? (*is_refused ? 1 : 0) : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2)
    GTEST_SKIP() << "needs root, ip(8) and nft(8), for a network of its own";
  EXPECT_EQ(WEXITSTATUS(status), GetParam() == Firewall::kNone ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Firewalls, ProbeBehindAFirewall,
                         testing::Values(Firewall::kNone, Firewall::kIcmp, Firewall::kIcmp6));

TEST_F(LivenessProbeTest, TellsNothingAfterItsEnd) {
  std::uint16_t port = 0;
  {
    port = Listener(loop, [](const tcp::socket&) {}).port();
  }
  begin(port);
  probe.reset();
  EXPECT_FALSE(run_until(
      loop, [&] { return refusals > 0; }, std::chrono::milliseconds(20)));
}

}  // namespace
}  // namespace ddprun::rendezvous
