// The two sides of bench/store: a server of ours, and a client that loads any server of the
// protocol.
//
//   bench-store serve                                   our server: prints its port
//   bench-store loop PORT OP CONNECTIONS DEPTH SECONDS  DEPTH requests at once on a connection
//   bench-store join PORT CLIENTS ROUNDS                connect, VALIDATE, PING, all at one time
//   bench-store wake PORT CLIENTS ROUNDS                all wait for one key: SET to last answer
//   bench-store multi PORT PAIRS ROUNDS                 one MULTI_SET of so many pairs, and PING
//   bench-store bulk PORT ROUNDS                        a value of 1 MiB: SET and PING, then GET
//   bench-store idle PORT CONNECTIONS                   open and silent until its stdin ends
//   bench-store crowd PORT SECONDS                      1,799 calm connections, then bad ones too
//
// OP: get, set (SET and PING in one send), add, check. Each prints lines of `name value`;
// bench/store reads them.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <charconv>
#include <stop_token>
#include <string_view>
#include <thread>
#include <vector>

#include "base/loop.h"
#include "bench/program.h"
#include "bench/store_load.h"
#include "store/server.h"

namespace ddprun::bench {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;
constexpr int kCalm = 1'799;
constexpr int kSlow = 100;
constexpr int kGarbage = 100;
// The calm connections ask one after the other, so often in all: the server is far from busy.
constexpr std::chrono::microseconds kCalmPause{1000};
constexpr std::chrono::milliseconds kBadPause{1};

int serve() {
  asio::io_context loop{1};
  auto acceptor = bind_listener(loop, "127.0.0.1", 0);
  if (acceptor.has_error()) fail(acceptor.error().message());
  tell("port", acceptor->local_endpoint().port());
  store::Server server(loop);
  server.serve(std::move(*acceptor));
  run_until_input_ends(loop);
  return 0;
}

// A request with the number of bytes that answer it.
Exchange exchange_of(std::string_view op) {
  if (op == "get") return {get("bench-key-00"), 8 + kValue.size()};
  if (op == "set") return {set("bench-key-01", kValue) + ping(), 4};
  if (op == "add") return {add("bench-key-02"), 8};
  if (op == "check") return {check("bench-key-00"), 1};
  fail(fmt::format("OP: {}: expected get, set, add or check", op));
}

int loop(std::uint16_t port, std::string_view op, int connections, int depth, double seconds) {
  Socket(port).ask(set("bench-key-00", kValue) + ping(), 4);
  Load load(port, connections);
  const Exchange exchange = exchange_of(op);
  load.run(exchange, depth, std::chrono::milliseconds(200));  // warm
  const auto start = Clock::now();
  std::vector<double> times =
      load.run(exchange, depth, std::chrono::milliseconds(static_cast<long>(seconds * 1000)));
  tell("per_second", 1000 * static_cast<double>(times.size()) / milliseconds_since(start));
  tell("p99_us", quantile(times, 0.99));
  return 0;
}

int join(std::uint16_t port, int clients, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    Load all(port, clients);
    tell("join_ms", milliseconds_since(start));
    all.close_and_wait();  // the server must not be busy with them in the next round
  }
  return 0;
}

int wake(std::uint16_t port, int clients, int rounds) {
  Load waiting(port, clients);
  Socket setter(port);
  for (int round = 0; round < rounds; ++round) {
    const std::string key = fmt::format("wake-{}", round);
    waiting.send_all(wait(key));
    // A later request on the same connection is answered at once: so all waits are known by now.
    waiting.send_all(ping());
    waiting.await_all(4);
    const auto start = Clock::now();
    setter.send(set(key, kValue));
    waiting.await_all(1);
    tell("wake_ms", milliseconds_since(start));
  }
  return 0;
}

int multi(std::uint16_t port, int pairs, int rounds) {
  Socket socket(port);
  const std::string request = multi_set(pairs, std::string(150, 'v')) + ping();
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    socket.ask(request, 4);
    if (round > 0) tell("multi_ms", milliseconds_since(start));
  }
  return 0;
}

// Answers each request of its one client with these bytes, in one call. No server can do less.
void answer_from_bare_socket(boost::asio::ip::tcp::acceptor& acceptor, std::size_t request_bytes,
                             std::size_t answer_bytes) {
  auto client = acceptor.accept();
  client.set_option(boost::asio::ip::tcp::no_delay(true));
  std::string request(request_bytes, '\0');
  const std::string answer(answer_bytes, 'v');
  boost::system::error_code ended;
  while (!ended) {
    boost::asio::read(client, boost::asio::buffer(request), ended);
    if (!ended) client.send(boost::asio::buffer(answer), 0, ended);
  }
}

int bulk(std::uint16_t port, int rounds) {
  const auto rate = [&](Socket& socket, std::string_view name, const std::string& request,
                        std::size_t answer) {
    socket.ask(request, answer);
    const auto start = Clock::now();
    for (int round = 0; round < rounds; ++round) socket.ask(request, answer);
    tell(name, rounds * static_cast<double>(kMebibyte) / 1e3 / milliseconds_since(start));
  };
  Socket socket(port);
  const std::string request = get("bulk");
  const std::size_t answer = 8 + kMebibyte;
  rate(socket, "set_mb_per_s", set("bulk", std::string(kMebibyte, 'v')) + ping(), 4);
  rate(socket, "get_mb_per_s", request, answer);
  boost::asio::io_context context;
  boost::asio::ip::tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  const std::jthread bare([&] { answer_from_bare_socket(acceptor, request.size(), answer); });
  Socket to_bare(acceptor.local_endpoint().port(), Socket::Greeting::kNone);
  rate(to_bare, "bare_mb_per_s", request, answer);
  return 0;
}

void await_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int idle(std::uint16_t port, int connections) {
  const Load all(port, connections);
  tell("connected", connections);
  await_end_of_input();
  return 0;
}

// This thread runs before all others that want its processor, if that is allowed (sched(7)). Then
// the server is measured, and not the other programs here.
class FirstOfAll {
 public:
  FirstOfAll() {
    const sched_param highest{.sched_priority = 1};
    ::sched_setscheduler(0, SCHED_FIFO, &highest);
  }
  FirstOfAll(const FirstOfAll&) = delete;
  FirstOfAll& operator=(const FirstOfAll&) = delete;
  ~FirstOfAll() {
    const sched_param none{.sched_priority = 0};
    ::sched_setscheduler(0, SCHED_OTHER, &none);
  }
};

// The latencies of connections that ask in turn, each at its time, whatever became of the one
// before. A request that waits because the server was busy counts with its whole wait.
std::vector<double> calm(std::vector<Socket>& sockets, std::chrono::milliseconds span) {
  const std::string request = get("bench-key-00");
  const FirstOfAll first;
  std::vector<double> times;
  auto due = Clock::now();
  const auto end = due + span;
  for (std::size_t turn = 0; due < end; ++turn, due += kCalmPause) {
    std::this_thread::sleep_until(due);  // the pace that is measured
    sockets[turn % sockets.size()].ask(request, 8 + kValue.size());
    times.push_back(1000 * milliseconds_since(due));
  }
  return times;
}

// The 99th percentile of each second, and the median of those. If the machine itself stands still
// for a moment, one of them has it.
double steady_p99(const std::vector<double>& times) {
  constexpr std::ptrdiff_t kWindow = std::chrono::seconds(1) / kCalmPause;
  std::vector<double> found;
  for (auto at = times.begin(); times.end() - at >= kWindow; at += kWindow) {
    std::vector<double> window(at, at + kWindow);
    found.push_back(quantile(window, 0.99));
  }
  return quantile(found, 0.5);
}

// Asks on as fast as the server lets it.
void flood(std::uint16_t port, const std::stop_token& stop) {
  Socket socket(port);
  std::string requests;
  // Short enough that the kernel, which may not be preempted in a send, keeps no calm one waiting.
  while (requests.size() < (std::size_t{4} << 10)) requests += set("flood", kValue) + ping();
  while (!stop.stop_requested()) {
    socket.send(requests);
    while (socket.discard()) {
    }
  }
}

// The slow ones send a request byte by byte. The others send garbage, are thrown out, and come
// again.
void disturb(std::uint16_t port, const std::stop_token& stop) {
  std::vector<Socket> slow;
  std::vector<Socket> garbage;
  for (int i = 0; i < kSlow; ++i) slow.emplace_back(port);
  for (int i = 0; i < kGarbage; ++i) garbage.emplace_back(port);
  const std::string request = set("slow", std::string(1 << 16, 's'));
  for (std::size_t turn = 0; !stop.stop_requested(); ++turn) {
    slow[turn % kSlow].send(request.substr(turn / kSlow % request.size(), 1));
    Socket& next = garbage[turn % kGarbage];
    next.send(std::string(200, '\xee'));
    next.await_end();
    next = Socket(port);
    std::this_thread::sleep_for(kBadPause);
  }
}

int crowd(std::uint16_t port, double seconds) {
  std::vector<Socket> sockets;
  for (int i = 0; i < kCalm; ++i) sockets.emplace_back(port);
  sockets.front().ask(set("bench-key-00", kValue) + ping(), 4);
  const auto span = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
  const double quiet = steady_p99(calm(sockets, span));
  tell("quiet_p99_us", quiet);
  const std::jthread bad([port](std::stop_token stop) { disturb(port, stop); });
  {
    const std::jthread flooding([port](std::stop_token stop) { flood(port, stop); });
    const double crowded = steady_p99(calm(sockets, span));
    tell("crowded_p99_us", crowded);
    tell("ratio", crowded / quiet);
  }
  return 0;
}

double number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value <= 0)
    fail(fmt::format("{}: expected a number above 0", text));
  return value;
}

int run(const std::vector<std::string_view>& words) {
  const auto is = [&words](std::string_view name, std::size_t count) {
    return words.size() == count + 1 && words[0] == name;
  };
  const auto whole = [&words](std::size_t i) { return static_cast<int>(number(words[i])); };
  if (is("serve", 0)) return serve();
  if (words.size() < 2) fail("expected serve, loop, join, wake, multi, bulk, idle or crowd");
  const auto port = static_cast<std::uint16_t>(whole(1));
  if (is("loop", 5)) return loop(port, words[2], whole(3), whole(4), number(words[5]));
  if (is("join", 3)) return join(port, whole(2), whole(3));
  if (is("wake", 3)) return wake(port, whole(2), whole(3));
  if (is("multi", 3)) return multi(port, whole(2), whole(3));
  if (is("bulk", 2)) return bulk(port, whole(2));
  if (is("idle", 2)) return idle(port, whole(2));
  if (is("crowd", 2)) return crowd(port, number(words[2]));
  fail(fmt::format("{}: unknown, or a wrong number of words after it", words[0]));
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) { return ddprun::bench::run({argv + 1, argv + argc}); }
