// The light nodes of bench/floods: many sessions with one host, in one process. They measure how
// long the host takes to answer their heartbeats.
//
//   bench-floods PORT NODES ALL [PEM]
//
// So many nodes join the job `bench`, which has ALL nodes, and want its last ranks. Prints
// `joined 1` when all of them know their rank. Then it reads bytes from stdin. After `f` it prints
// `answers`, `median_ms`, `p99_ms` and `most_ms` of the heartbeats that were answered since the
// last `f`. After `e` the nodes have succeeded, and the program ends when the job does. The exit
// code is 1 if a node is lost, or if the job ends otherwise. PEM: the folder of the certificates;
// none: in clear.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/net/descriptors.h"
#include "bench/program.h"
#include "rendezvous/grpc/client.h"

namespace ddprun {
namespace {

using bench::tell;
using rendezvous::HostMessage;

class LightNodes {
 public:
  LightNodes(int count, int all, std::uint16_t port, const std::string& pem)
      : count_(count), input_(loop_, STDIN_FILENO) {
    rendezvous::TlsFiles tls;
    if (!pem.empty()) tls = {pem + "/ca.pem", pem + "/cert.pem", pem + "/key.pem"};
    for (int i = 0; i < count; ++i) {
      sessions_.push_back(rendezvous::open_remote_session(
          loop_,
          {.host = "127.0.0.1",
           .port = port,
           .token = {"a token of this bench"},
           .rdzv_id = "bench",
           .tls = tls,
           .heartbeat_answered = [this](auto took) { took_ms_.push_back(took.count()); }},
          [this](const HostMessage& message) { on_message(message); }));
      sessions_.back()->join({.node_id = fmt::format("light-{}", i),
                              .hostname = fmt::format("light-{}", i),
                              .node_rank = all - count + i,
                              .rank_is_preferred = true,
                              .store_port = 1,
                              .min_nodes = all,
                              .max_nodes = all});
    }
    read_input();
  }
  void run() { loop_.run(); }

 private:
  void on_message(const HostMessage& message) {
    const auto* const published = std::get_if<rendezvous::RoundPublished>(&message);
    const auto* const ended = std::get_if<rendezvous::JobEnded>(&message);
    const auto* const lost = std::get_if<rendezvous::SessionLost>(&message);
    if (published != nullptr) {
      round_ = published->round.number;
      if (++published_ == count_) tell("joined", 1);
    } else if (ended != nullptr && ended->succeeded) {
      if (++ended_ == count_) loop_.stop();
    } else {
      fmt::print(stderr, "a light node is not left in peace: {}\n",
                 lost != nullptr ? lost->error.message() : "the round broke, or the job failed");
      std::_Exit(1);
    }
  }

  void read_input() {
    input_.async_read_some(boost::asio::buffer(&byte_, 1),
                           [this](const boost::system::error_code& error, std::size_t) {
                             if (error) return loop_.stop();
                             if (byte_ == 'f') tell_figures();
                             if (byte_ == 'e')
                               for (const auto& one : sessions_) one->report_success(round_);
                             read_input();
                           });
  }

  void tell_figures() {
    auto took = std::exchange(took_ms_, {});
    std::ranges::sort(took);
    const auto share = [&](std::size_t percent) {
      return took.empty() ? 0.0 : static_cast<double>(took[(took.size() - 1) * percent / 100]);
    };
    tell("answers", static_cast<double>(took.size()));
    tell("median_ms", share(50));
    tell("p99_ms", share(99));
    tell("most_ms", share(100));
  }

  boost::asio::io_context loop_{1};
  const int count_;
  int published_ = 0;
  int ended_ = 0;
  std::int64_t round_ = 0;
  char byte_ = 0;
  std::vector<std::int64_t> took_ms_;
  boost::asio::posix::stream_descriptor input_;
  std::vector<std::unique_ptr<rendezvous::Session>> sessions_;
};

int number(const char* text) {
  int value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

int run(int argc, char** argv) {
  if (argc < 4 || argc > 5 || number(argv[1]) <= 0 || number(argv[2]) <= 0 ||
      number(argv[3]) < number(argv[2])) {
    fmt::print(stderr, "expected: PORT NODES ALL [PEM]\n");
    return 2;
  }
  LightNodes nodes(number(argv[2]), number(argv[3]), static_cast<std::uint16_t>(number(argv[1])),
                   argc == 5 ? argv[4] : "");
  nodes.run();
  return 0;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  ddprun::raise_descriptor_limit();
  return ddprun::run(argc, argv);
}
