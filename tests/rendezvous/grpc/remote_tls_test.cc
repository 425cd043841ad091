// Nodes and a host that show each other certificates.
#include <gtest/gtest.h>

#include <array>
#include <boost/asio/read.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rendezvous/grpc/remote_fixture.h"
#include "tests/rendezvous/trust/certificates.h"

namespace ddprun::rendezvous {
namespace {

struct RemoteTlsTest : RemoteTest {
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "OpenSSL and gRPC are not instrumented: each handshake looks like races";
#endif
  }
  ServiceOptions with_tls() const {
    return {.token = {"secret"}, .keep_alive = kNoHeartbeats, .tls = host_files};
  }
  RemoteOptions to_tls(std::uint16_t port, const TlsFiles& files) const {
    RemoteOptions options = to(port);
    options.tls = files;
    return options;
  }
  // Returns the host's answer to a node with these files; "joined" if nothing.
  std::string outcome(std::uint16_t port, const TlsFiles& files) {
    TestNode node;
    join(node, to_tls(port, files), make_node("a"));
    if (!run_until(loop, [&] { return !node.messages.empty(); })) return "nothing";
    return node.last_is<RoundPublished>() ? "joined" : node.error();
  }

  static int count(const std::string& text, const std::string& words) {
    int found = 0;
    for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++found;
    return found;
  }

  const TestAuthority authority;
  const TestFolder folder;
  const TlsFiles host_files = folder.write("host", authority.pem(), authority.issue());
  const TlsFiles node_files = folder.write("node", authority.pem(), authority.issue());
};

TEST_F(RemoteTlsTest, BothSidesShowACertificate) {
  HostSide side(loop, 1, with_tls());
  Relay relay(loop, side.port());
  TestNode node;
  join(node, to_tls(relay.port(), node_files), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
  for (const std::string* heard : {&relay.from_node, &relay.from_host})
    for (const char* word : {"secret", "host-a", "ddprun"})
      EXPECT_EQ(heard->find(word), std::string::npos) << word;
  EXPECT_EQ(relay.from_node.front(), 0x16);
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node})) << node.error();
}

TEST_F(RemoteTlsTest, KeysMayBeOfSeveralKinds) {
  for (const char* kind : {"RSA", "P-384", "P-521", "ED25519"}) {
    const TestAuthority own("authority", kind);
    const TlsFiles files = folder.write("own", own.pem(), own.issue({.key = kind}));
    HostSide side(loop, 1, {.token = {"secret"}, .keep_alive = kNoHeartbeats, .tls = files});
    EXPECT_EQ(outcome(side.port(), files), "joined") << kind;
  }
}

TEST_F(RemoteTlsTest, ATokenIsStillAskedFor) {
  HostSide side(loop, 1, with_tls());
  RemoteOptions options = to_tls(side.port(), node_files);
  options.token.key = "wrong";
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_NE(node.error().find("token is missing or wrong"), std::string::npos) << node.error();
}

TEST_F(RemoteTlsTest, TheHostsCertificateIsOfAnotherAuthority) {
  HostSide side(loop, 1, with_tls());
  const TestAuthority other("another authority");
  const std::string said = outcome(side.port(), folder.write("node", other.pem(), other.issue()));
  EXPECT_NE(
      said.find("tls_ca=" + folder.path("node-ca.pem") + " does not vouch for its certificate"),
      std::string::npos)
      << said;
}

// The node believes the host; the host does not believe the node.
TEST_F(RemoteTlsTest, TheNodesCertificateIsOfAnotherAuthority) {
  HostSide side(loop, 1, with_tls());
  const TestAuthority other("another authority");
  const std::string said =
      outcome(side.port(), folder.write("node", authority.pem() + other.pem(), other.issue()));
  EXPECT_NE(
      said.find("it does not accept the certificate in tls_cert=" + folder.path("node-cert.pem")),
      std::string::npos)
      << said;
}

TEST_F(RemoteTlsTest, TheHostsCertificateIsForAnotherName) {
  folder.write("host", authority.pem(), authority.issue({.alternative_names = "DNS:elsewhere"}));
  HostSide side(loop, 1, with_tls());
  const std::string said = outcome(side.port(), node_files);
  EXPECT_NE(said.find("its certificate is not one for 127.0.0.1"), std::string::npos) << said;
}

TEST_F(RemoteTlsTest, AHostWithoutTlsSaysSoToANodeWithIt) {
  HostSide side(loop, 1);
  const std::string said = outcome(side.port(), node_files);
  EXPECT_NE(said.find("it does not take TLS"), std::string::npos) << said;
}

TEST_F(RemoteTlsTest, ANodeInClearIsToldThatTlsIsWanted) {
  HostSide side(loop, 1, with_tls());
  const std::string said = outcome(side.port(), {});
  EXPECT_NE(said.find("it wants TLS: tls_ca, tls_cert and tls_key in --rdzv-conf"),
            std::string::npos)
      << said;
}

TEST_F(RemoteTlsTest, BothComeWhereThatIsAskedFor) {
  ServiceOptions options = with_tls();
  options.tls_mixed = true;
  HostSide side(loop, 2, options);
  TestNode clear;
  TestNode tls;
  join(clear, to(side.port()), make_node("a"));
  join(tls, to_tls(side.port(), node_files), make_node("b"));
  EXPECT_TRUE(all_hear<RoundPublished>({&clear, &tls})) << clear.error() << tls.error();
}

// Both sides have an authority when the first node comes, and another one for the second.
TEST_F(RemoteTlsTest, FilesAreReadAnewForEachConnection) {
  HostSide side(loop, 2, with_tls());
  TestNode before;
  join(before, to_tls(side.port(), node_files), make_node("a"));
  // A new authority on both sides: what was read at start fits nothing any more.
  ASSERT_TRUE(run_until(loop, [&] { return before.session->wait_status().has_value(); }));
  const TestAuthority next("the next authority");
  folder.write("host", next.pem(), next.issue());
  TestNode after;
  join(after, to_tls(side.port(), folder.write("later", next.pem(), next.issue())), make_node("b"));
  EXPECT_TRUE(all_hear<RoundPublished>({&before, &after})) << before.error() << after.error();
}

// Somebody who knows no TLS sends what begins like it.
TEST_F(RemoteTlsTest, GarbageCostsOneLine) {
  HostSide side(loop, 1, with_tls());
  testing::internal::CaptureStderr();
  std::vector<tcp::socket> peers;
  for (int i = 0; i < 20; ++i) {
    peers.emplace_back(loop);
    peers.back().connect({boost::asio::ip::address_v4::loopback(), side.port()});
    asio::write(peers.back(), asio::buffer("\x16\x03\x01\x00\x05hello and more"));
  }
  int closed = 0;
  std::array<char, 64> bytes{};
  for (tcp::socket& peer : peers)
    asio::async_read(peer, asio::buffer(bytes), [&](auto /*error*/, std::size_t) { ++closed; });
  EXPECT_TRUE(run_until(loop, [&] { return closed == 20; })) << closed;
  EXPECT_EQ(outcome(side.port(), node_files), "joined");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LE(count(log, " gRPC: "), 1) << log;
}

// A connection that ends tells nothing of TLS: a host may just be starting or ending.
TEST_F(RemoteTlsTest, ANodeTriesAgainWhereConnectionsOnlyEnd) {
  int ended = 0;
  std::optional<HostSide> side;
  Listener door(loop, [&](tcp::socket socket) {
    if (side) return side->take(std::move(socket));
    ++ended;
  });
  TestNode node;
  join(node, to_tls(door.port(), node_files), make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return ended >= 10 || !node.messages.empty(); }));
  EXPECT_TRUE(node.messages.empty()) << node.error();
  side.emplace(loop, 1, with_tls());
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

TEST_F(RemoteTlsTest, AHostWarnsOnceOfEachTimeThatItsFilesAreWrong) {
  HostSide side(loop, 9, with_tls());
  testing::internal::CaptureStderr();
  std::vector<std::unique_ptr<TestNode>> nodes;
  const auto one_comes = [&] {
    nodes.push_back(std::make_unique<TestNode>());
    join(*nodes.back(), to_tls(side.port(), node_files), make_node(std::to_string(nodes.size())));
    return run_until(loop, [&] { return nodes.back()->session->wait_status().has_value(); });
  };
  const PemPair right = authority.issue();
  for (int i = 0; i < 2; ++i) {
    folder.write("host", authority.pem(), right);
    ASSERT_TRUE(one_comes());
    folder.write("host", authority.pem(), {right.cert, authority.issue().key});
    ASSERT_TRUE(one_comes() && one_comes());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(log, "the key is not that of the certificate"), 2) << log;
}

}  // namespace
}  // namespace ddprun::rendezvous
