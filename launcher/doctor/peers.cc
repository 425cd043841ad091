#include "launcher/doctor/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <thread>
#include <utility>

#include "base/duration.h"
#include "base/loop.h"
#include "store/client.h"

namespace ddprun::launcher {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kBulkBytes = 64U << 10U;
constexpr std::chrono::milliseconds kStoreLimit{3000};
constexpr std::chrono::milliseconds kAcceptPause{10};

double wall_clock() { return in_seconds(std::chrono::system_clock::now().time_since_epoch()); }

// A connection answers one byte with its clock, and 64 KiB with 64 KiB.
asio::awaitable<void> answer(std::shared_ptr<tcp::socket> socket) {
  char hello = 0;
  auto [no_hello, one] = co_await asio::async_read(*socket, asio::buffer(&hello, 1), kAsTuple);
  if (no_hello) co_return;
  const double clock = wall_clock();
  auto [not_told, told] =
      co_await asio::async_write(*socket, asio::buffer(&clock, sizeof(clock)), kAsTuple);
  if (not_told) co_return;
  std::vector<char> bulk(kBulkBytes);
  auto [lost, got] = co_await asio::async_read(*socket, asio::buffer(bulk), kAsTuple);
  if (!lost) co_await asio::async_write(*socket, asio::buffer(bulk), kAsTuple);
}

asio::awaitable<void> answer_all(asio::io_context& loop, tcp::acceptor& acceptor) {
  while (true) {
    auto [failed, socket] = co_await acceptor.async_accept(kAsTuple);
    // That one is gone, or there is no memory or file for it now (accept(2)): others come.
    if (failed == asio::error::operation_aborted) co_return;
    if (failed) {
      asio::steady_timer pause(loop);
      co_await expires(pause, kAcceptPause);
      continue;
    }
    spawn(loop, "doctor answer", answer(std::make_shared<tcp::socket>(std::move(socket))));
  }
}

asio::awaitable<void> talk(tcp::socket& socket, const tcp::endpoint& peer, Pair& pair) {
  auto [refused] = co_await socket.async_connect(peer, kAsTuple);
  if (refused) {
    // Else the time is over, and `error` says so.
    if (refused != asio::error::operation_aborted) pair.error = refused.message();
    co_return;
  }
  const double asked = wall_clock();
  const auto begin = Clock::now();
  const char hello = 1;
  double clock = 0;
  co_await asio::async_write(socket, asio::buffer(&hello, 1), kAsTuple);
  auto [lost, got] =
      co_await asio::async_read(socket, asio::buffer(&clock, sizeof(clock)), kAsTuple);
  if (lost) co_return;
  pair.round_trip = in_seconds(Clock::now() - begin);
  pair.clock_difference = clock - (asked + pair.round_trip / 2);
  pair.reach = Reach::kSmallOnly;
  std::vector<char> bulk(kBulkBytes, 'x');
  co_await asio::async_write(socket, asio::buffer(bulk), kAsTuple);
  auto [cut, all] = co_await asio::async_read(socket, asio::buffer(bulk), kAsTuple);
  if (!cut) pair.reach = Reach::kAll;
}

asio::awaitable<void> try_pair(asio::io_context& loop, const Peer& peer, Pair& pair) {
  pair.error = "no answer";
  boost::system::error_code wrong;
  const auto address = asio::ip::make_address(peer.address, wrong);
  if (wrong) co_return;
  tcp::socket socket(loop);
  asio::steady_timer timer(loop);
  const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(peer.port));
  co_await (talk(socket, endpoint, pair) || expires(timer, kPairLimit));
}

// Takes pair after pair, until none is left.
asio::awaitable<void> try_pairs(asio::io_context& loop, const std::vector<Peer>& peers,
                                std::vector<Pair>& pairs, std::size_t& next) {
  while (next < pairs.size()) {
    Pair& pair = pairs[next++];
    co_await try_pair(loop, peers[static_cast<std::size_t>(pair.to)], pair);
  }
}

std::string key_of(const WorkerEnv& worker, const char* what, int rank) {
  return fmt::format("/ddprun/doctor/{}/{}/{}", worker.restart_count, what, rank);
}

// The loop in which this node answers the others, on a thread of its own.
class Answers {
 public:
  explicit Answers(const std::string& address)
      : acceptor_(loop_, tcp::endpoint(asio::ip::make_address(address), 0)) {
    spawn(loop_, "doctor answers", answer_all(loop_, acceptor_));
    thread_ = std::thread([this] { loop_.run(); });
  }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;
  ~Answers() {
    loop_.stop();
    thread_.join();
  }
  int port() const { return port_; }

 private:
  asio::io_context loop_{1};
  tcp::acceptor acceptor_;
  int port_ = acceptor_.local_endpoint().port();
  std::thread thread_;
};

std::vector<Pair> try_all(const WorkerEnv& worker, const std::vector<Peer>& peers) {
  std::vector<Pair> pairs;
  // Each begins with the next node: else all of them would come to the first one at once.
  for (int step = 1; step < worker.world_size; ++step)
    pairs.push_back({.to = (worker.rank + step) % worker.world_size});
  asio::io_context loop(1);
  std::size_t next = 0;
  for (std::size_t i = 0; i < std::min(kPairsAtOnce, pairs.size()); ++i)
    spawn(loop, "doctor pairs", try_pairs(loop, peers, pairs, next));
  loop.run();
  return pairs;
}

// Gathers each node's results for its pairs. One limit for all: those that reach nobody say so
// last, and those that are gone say nothing.
Result<std::vector<std::optional<std::vector<Pair>>>> pairs_of_all(store::Client& store,
                                                                   const WorkerEnv& worker) {
  const auto nodes = static_cast<std::size_t>(worker.world_size);
  std::vector<std::string> keys;
  keys.reserve(nodes);
  for (int rank = 0; rank < worker.world_size; ++rank)
    keys.push_back(key_of(worker, "pairs", rank));
  if (auto all = store.wait(keys, kStoreLimit + time_of_pairs(nodes));
      !all && all.error().code() != ErrorCode::kTimedOut)
    return all.error();
  std::vector<std::optional<std::vector<Pair>>> tried;
  for (const std::string& key : keys) {
    const auto is_there = store.check({&key, 1});
    if (!is_there) return is_there.error();
    const auto text = *is_there ? store.get(key) : Result<std::string>(std::string());
    if (!text) return text.error();
    tried.push_back(read_pairs(*text, nodes));
  }
  return tried;
}

}  // namespace

std::chrono::milliseconds time_of_pairs(std::size_t nodes) {
  const std::size_t others = nodes - std::min<std::size_t>(nodes, 1);
  return kPairLimit * static_cast<int>((others + kPairsAtOnce - 1) / kPairsAtOnce);
}

Result<Findings> examine_peers(const WorkerEnv& worker, Peer self) {
  auto store = store::Client::connect(worker.master_addr, worker.master_port, kStoreLimit);
  if (!store) return store.error();
  self.address = store->local_address();
  const Answers answers(self.address);
  self.port = answers.port();
  if (auto said = store->set(key_of(worker, "peer", worker.rank), write_peer(self)); !said)
    return said.error();
  std::vector<Peer> peers;
  for (int rank = 0; rank < worker.world_size; ++rank) {
    const auto text = store->get(key_of(worker, "peer", rank));
    if (!text) return text.error();
    peers.push_back(read_peer(*text).value_or(Peer{}));
  }
  const auto pairs = write_pairs(try_all(worker, peers));
  if (auto said = store->set(key_of(worker, "pairs", worker.rank), pairs); !said)
    return said.error();
  const auto tried = pairs_of_all(*store, worker);
  if (!tried) return tried.error();
  return judge_pairs(peers, *tried);
}

}  // namespace ddprun::launcher
