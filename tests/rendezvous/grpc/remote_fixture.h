// The fixture of the remote tests. A host listens on a loopback port, and nodes come to it over
// TCP. The host's connections are accepted by a Listener and adopted by its Service, as in the
// agent. All of it is on one loop and one thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/grpc/client.h"
#include "rendezvous/grpc/service.h"
#include "rendezvous/host/host.h"
#include "rendezvous/trust/tls_probe.h"
#include "tests/rendezvous/grpc/relay.h"
#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Longer than any test. With it no lease ever ends, so what a test notices has another cause.
inline constexpr KeepAlive kNoHeartbeats{.interval = std::chrono::minutes(10)};

// A host with its listening port. A test may end its parts one by one.
struct HostSide {
  HostSide(asio::io_context& loop, int nodes,
           ServiceOptions options = {.token = {"secret"}, .keep_alive = kNoHeartbeats},
           milliseconds join_timeout = std::chrono::seconds(60)) {
    host.emplace(loop, RoundPolicy{.min_nodes = nodes,
                                   .max_nodes = nodes,
                                   .settings = {.join_timeout = join_timeout}});
    with_tls = options.tls.is_set();
    service.emplace(loop, *host, std::move(options));
    listener.emplace(loop, [this](tcp::socket socket) { take(std::move(socket)); });
  }
  std::uint16_t port() const { return listener->port(); }
  // As the agent does: the first byte tells.
  void take(tcp::socket socket) {
    const auto shared = std::make_shared<tcp::socket>(std::move(socket));
    shared->async_wait(tcp::socket::wait_read, [this, shared, with_tls = with_tls](auto /*error*/) {
      char first = 0;
      const auto peeked = ::recv(shared->native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
      if (peeked != 1 || !service) return;
      if (first == 0x16 && with_tls) return service->adopt_tls(shared->release());
      if (first == 0x16)
        ::send(shared->native_handle(), kNoTlsAlert.data(), kNoTlsAlert.size(), MSG_NOSIGNAL);
      if (first == 'P') service->adopt(shared->release());
    });
  }
  void end() {
    listener.reset();
    service.reset();
  }

  bool with_tls = false;
  std::optional<Host> host;
  std::optional<Service> service;
  std::optional<Listener> listener;
};

struct RemoteTest : testing::Test {
  asio::io_context loop{1};

  static RemoteOptions to(std::uint16_t port) {
    return {.host = "127.0.0.1", .port = port, .token = {"secret"}, .read_timeout = kTestLimit};
  }
  void open_session(TestNode& node, const RemoteOptions& options) {
    node.session = open_remote_session(loop, options, node.handler());
  }
  void join(TestNode& node, const RemoteOptions& options, const NodeSpec& spec) {
    open_session(node, options);
    node.session->join(spec);
  }
  template <typename Kind>
  bool all_hear(std::initializer_list<const TestNode*> nodes, milliseconds limit = kTestLimit) {
    return run_until(
        loop,
        [&] {
          return std::ranges::all_of(nodes, [](const TestNode* n) { return n->last_is<Kind>(); });
        },
        limit);
  }
};

}  // namespace ddprun::rendezvous
