// The two sides of bench/rendezvous, and the membership alone.
//
//   bench-rendezvous pure NODES         joins of so many nodes, without any network
//   bench-rendezvous host NODES [PEM]   a host for so many; prints its port, ends with its stdin
//   bench-rendezvous nodes NODES PORT ROUNDS [PEM]
//                                       so many nodes at the host of that port, 1,000 a process
//   bench-rendezvous handshakes COUNT PEM TLS alone (tls_floor.h)
//
// PEM is a folder with ca.pem, cert.pem and key.pem: both sides then show each other certificates.
// Each prints lines of `name value`, times in milliseconds. bench/rendezvous reads them.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/net/descriptors.h"
#include "bench/program.h"
#include "bench/tls_floor.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/grpc/client.h"
#include "rendezvous/grpc/service.h"
#include "rendezvous/host/host.h"

namespace ddprun {
namespace {

using asio::ip::tcp;
using bench::Clock;
using bench::milliseconds_since;
using bench::run_until_input_ends;
using bench::tell;
using rendezvous::NodeSpec;
using rendezvous::SessionId;

constexpr int kManyRestarts = 1'000'000;
// How long the host is left alone, so that it has handled what was sent.
constexpr std::chrono::seconds kQuiet{2};

NodeSpec spec_of(int node) {
  return {.node_id = fmt::format("node-{}", node),
          .hostname = fmt::format("host-{}", node),
          .store_port = 1,
          .max_restarts = kManyRestarts};
}

rendezvous::RoundPolicy policy_for(int nodes) {
  return {
      .min_nodes = nodes, .max_nodes = nodes, .settings = {.join_timeout = std::chrono::hours(1)}};
}

int pure(int nodes) {
  rendezvous::Membership membership(policy_for(nodes));
  std::vector<NodeSpec> specs;
  for (int i = 0; i < nodes; ++i) specs.push_back(spec_of(i));
  const rendezvous::PeerInfo observed{"10.0.0.1", "10.0.0.2"};
  const auto start = Clock::now();
  bool published = false;
  for (int i = 0; i < nodes; ++i)
    published = membership
                    .joined(static_cast<SessionId>(i) + 1, specs[static_cast<std::size_t>(i)],
                            observed, Clock::now())
                    .published.has_value();
  tell("joins_ms", milliseconds_since(start));
  return published ? 0 : 1;
}

// Hands every connection to the service, until `loop` ends.
asio::awaitable<void> accept(tcp::acceptor& acceptor, rendezvous::Service& service, bool tls) {
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(kAsTuple);
    if (error) continue;
    if (tls) {
      service.adopt_tls(socket.release());
    } else {
      service.adopt(socket.release());
    }
  }
}

rendezvous::TlsFiles files_in(const std::string& folder) {
  if (folder.empty()) return {};
  return {folder + "/ca.pem", folder + "/cert.pem", folder + "/key.pem"};
}

int host(int nodes, const rendezvous::TlsFiles& tls) {
  asio::io_context loop{1};
  rendezvous::Host rendezvous_host(loop, policy_for(nodes));
  rendezvous::Service service(
      loop, rendezvous_host,
      {.token = {"a token of this bench"}, .expected_nodes = nodes, .tls = tls});
  tcp::acceptor acceptor(loop, {asio::ip::address_v4::loopback(), 0});
  acceptor.listen(4096);
  spawn(loop, "accept", accept(acceptor, service, tls.is_set()));
  tell("port", acceptor.local_endpoint().port());
  run_until_input_ends(loop);
  return 0;
}

// The message of a process of nodes to the first one.
enum class Progress : char { kPublished = 'p', kJoined = 'j' };

// The host that the nodes go to.
struct At {
  std::uint16_t port = 0;
  rendezvous::TlsFiles tls;
};

// Some of the nodes, on one loop. Node 0 is in the first process.
class Nodes {
 public:
  // `first`: number of the first node. `others`: how many other processes write into `progress`, if
  // this is the first one; else it writes there itself.
  Nodes(int first, int count, const At& at, int others, int progress)
      : first_(first), count_(count), at_(at), others_(others), progress_(loop_, progress) {
    if (others_ > 0) hear_others();
  }

  void open() {
    sessions_.clear();
    for (int i = 0; i < count_; ++i) {
      sessions_.push_back(rendezvous::open_remote_session(
          loop_,
          {.host = "127.0.0.1",
           .port = at_.port,
           .token = {"a token of this bench"},
           .tls = at_.tls},
          [this](const rendezvous::HostMessage& message) { on_message(message); }));
    }
  }
  // Those from the `from`-th of this process to the `to`-th.
  void join(int from, int to) {
    for (int i = from; i < to; ++i)
      sessions_[static_cast<std::size_t>(i)]->join(spec_of(first_ + i));
  }
  void join_all() { join(0, count_); }
  void fail() {
    sessions_.front()->report_failure(round_, {.hostname = "host-0", .message = "bench"});
  }
  void await_end() {
    run_until([this] { return broken_ == count_; });
    broken_ = 0;
  }
  // Waits for the nodes of all processes, in the first one; else for these.
  void await_round() {
    run_until([this] { return published_ == count_ && others_published_ == others_; });
    published_ = others_published_ = 0;
  }
  void await_joins_of_others() {
    run_until([this] { return others_joined_ == others_; });
    others_joined_ = 0;
  }
  void say(Progress progress) { asio::write(progress_, asio::buffer(&progress, 1)); }
  void rest() {
    loop_.restart();
    loop_.run_for(kQuiet);
  }
  // Heartbeats go on meanwhile.
  void idle() { run_until_input_ends(loop_); }

 private:
  void on_message(const rendezvous::HostMessage& message) {
    if (const auto* published = std::get_if<rendezvous::RoundPublished>(&message)) {
      ++published_;
      round_ = published->round.number;
    } else if (std::holds_alternative<rendezvous::RoundBroken>(message)) {
      ++broken_;
    } else {
      const auto* lost = std::get_if<rendezvous::SessionLost>(&message);
      fmt::print(stderr, "a node was lost: {}\n",
                 lost != nullptr ? lost->error.message() : "the job ended");
      std::_Exit(1);
    }
  }
  void hear_others() {
    progress_.async_read_some(
        asio::buffer(received_), [this](const boost::system::error_code& error, std::size_t count) {
          if (error) std::_Exit(1);  // they have all ended
          for (const Progress progress : std::span(received_).first(count))
            ++(progress == Progress::kPublished ? others_published_ : others_joined_);
          hear_others();
        });
  }
  template <typename Condition>
  void run_until(Condition holds) {
    while (!holds()) {
      loop_.restart();
      loop_.run_one_for(std::chrono::seconds(60));
    }
  }

  asio::io_context loop_{1};
  const int first_;
  const int count_;
  const At at_;
  const int others_;
  asio::posix::stream_descriptor progress_;
  std::array<Progress, 64> received_{};
  int published_ = 0;
  int broken_ = 0;
  int others_published_ = 0;  // processes
  int others_joined_ = 0;
  std::int64_t round_ = 0;
  std::vector<std::unique_ptr<rendezvous::Session>> sessions_;
};

// Agents have machines of their own. The host shall not wait for a processor that ten processes of
// them share with it.
constexpr int kNiceness = 10;

// The nodes of another process than the first: they join whenever there is no round.
[[noreturn]] void other_nodes(int first, int count, const At& at, int progress) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpriority(PRIO_PROCESS, 0, kNiceness);
  Nodes nodes(first, count, at, 0, progress);
  nodes.open();
  for (;;) {
    nodes.join_all();
    nodes.say(Progress::kJoined);
    nodes.await_round();
    nodes.say(Progress::kPublished);
    nodes.await_end();
  }
}

// Each node is a process where it is used, and here many share one. Too many share its threads and
// tables: what they cost would be the bench's.
constexpr int kNodesOfAProcess = 1000;

int nodes(int count, const At& at, int rounds) {
  int progress[2];
  if (::pipe2(progress, O_CLOEXEC) != 0) return 1;
  auto start = Clock::now();
  const int mine = std::min(count, kNodesOfAProcess);
  int others = 0;
  for (int first = mine; first < count; first += kNodesOfAProcess, ++others) {
    if (::fork() != 0) continue;
    ::close(progress[0]);
    other_nodes(first, std::min(kNodesOfAProcess, count - first), at, progress[1]);
  }
  ::close(progress[1]);
  Nodes nodes(0, mine, at, others, progress[0]);
  nodes.open();
  nodes.join_all();
  nodes.await_joins_of_others();
  nodes.await_round();
  tell("first_connect_ms", milliseconds_since(start));
  for (int round = 0; round < rounds; ++round) {
    nodes.fail();
    nodes.await_end();
    nodes.join(1, mine);
    nodes.await_joins_of_others();
    nodes.rest();
    start = Clock::now();
    nodes.join(0, 1);
    nodes.await_round();
    tell("last_join_ms", milliseconds_since(start));
  }
  tell("idle", 1);
  nodes.idle();
  return 0;
}

int number(const char* text) {
  int value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

int run(int argc, char** argv) {
  const std::string_view mode = argc > 2 ? argv[1] : "";
  const int count = argc > 2 ? number(argv[2]) : 0;
  if (mode == "pure" && count > 0) return pure(count);
  if (mode == "host" && argc <= 4 && count > 0)
    return host(count, files_in(argc == 4 ? argv[3] : ""));
  if (mode == "nodes" && (argc == 5 || argc == 6) && count > 0)
    return nodes(count,
                 {static_cast<std::uint16_t>(number(argv[3])), files_in(argc == 6 ? argv[5] : "")},
                 number(argv[4]));
  if (mode == "handshakes" && argc == 4 && count > 0) {
    const double each = bench::handshake_ms(files_in(argv[3]), count);
    tell("handshake_ms", each);
    return each < 0 ? 1 : 0;
  }
  fmt::print(stderr,
             "expected: pure NODES, host NODES [PEM], nodes NODES PORT ROUNDS [PEM] or handshakes "
             "COUNT PEM\n");
  return 2;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  ddprun::raise_descriptor_limit();
  return ddprun::run(argc, argv);
}
