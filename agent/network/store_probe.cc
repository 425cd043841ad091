#include "agent/network/store_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

namespace ddprun::agent {
namespace {

using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace)

// A refusal may come from a store that goes down with its round: the host says so in a moment. So
// it is asked again until the end.
constexpr std::chrono::milliseconds kPause{500};
constexpr std::chrono::milliseconds kFirstTry{1400};

asio::awaitable<boost::system::error_code> try_to_connect(asio::io_context& loop,
                                                          tcp::endpoint store,
                                                          std::chrono::nanoseconds limit) {
  tcp::socket socket(loop);
  asio::steady_timer timer(loop);
  const auto done = co_await (socket.async_connect(store, kAsTuple) || expires(timer, limit));
  if (done.index() == 1) co_return make_error_code(asio::error::timed_out);
  co_return std::get<0>(std::get<0>(done));
}

asio::awaitable<void> probe(asio::io_context& loop, tcp::endpoint store, std::string what,
                            std::function<void(const std::string&)> unreachable) {
  const auto end = std::chrono::steady_clock::now() + kStoreProbeLimit;
  auto failed = co_await try_to_connect(loop, store, kFirstTry);
  while (failed) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) break;
    if (failed != asio::error::timed_out) {
      asio::steady_timer pause(loop);
      co_await expires(pause, std::min<std::chrono::nanoseconds>(kPause, left));
    }
    const auto rest = end - std::chrono::steady_clock::now();
    if (rest <= std::chrono::nanoseconds(0)) break;
    failed = co_await try_to_connect(loop, store, rest);
  }
  if (failed)
    unreachable(fmt::format(
        "{} ({}): the store of the workers is there, so let the ports that its kernel gives out "
        "through the firewall (sysctl net.ipv4.ip_local_port_range)",
        what, failed == asio::error::timed_out ? "no answer" : failed.message()));
}

}  // namespace

void probe_store(asio::io_context& loop, const rendezvous::Round& round,
                 const std::string& own_name, std::function<void(const std::string&)> unreachable) {
  boost::system::error_code is_name;
  const auto address = asio::ip::make_address(round.master_addr, is_name);
  if (is_name) return;
  const bool is_v6 = address.is_v6();
  // An older host does not say whose the store is.
  const std::string whose =
      round.master_hostname.empty() ? std::string("the store") : round.master_hostname;
  spawn(loop, "store probe",
        probe(loop, {address, round.master_port},
              fmt::format("{} cannot reach {} at {}{}{}:{}", own_name, whose, is_v6 ? "[" : "",
                          round.master_addr, is_v6 ? "]" : "", round.master_port),
              std::move(unreachable)));
}

}  // namespace ddprun::agent
