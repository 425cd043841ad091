#include "agent/network/name_lookup.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "agent/network/addresses.h"
#include "proto/log.h"

namespace ddprun::agent {
namespace {

using asio::ip::address;
using asio::ip::tcp;
using boost::system::error_code;
using Addresses = std::vector<address>;
using Clock = std::chrono::steady_clock;

// Asks the resolver once. An empty answer: it has no address, and `why` says why. If a DNS server
// is dead, getaddrinfo(3) takes some seconds and nothing can interrupt it. So after `limit` this
// says that nobody answered, but it returns only when that call does.
asio::awaitable<Addresses> ask(asio::io_context& loop, const std::string& host,
                               std::chrono::nanoseconds limit, std::string& why) {
  using asio::experimental::awaitable_operators::operator||;
  tcp::resolver resolver(loop);
  asio::steady_timer timer(loop);
  const auto answer =
      co_await (resolver.async_resolve(host, "", kAsTuple) || expires(timer, limit));
  Addresses found;
  if (answer.index() != 0) {
    why = "the resolver does not answer";
    co_return found;
  }
  const auto& [failure, entries] = std::get<0>(answer);
  why = failure ? failure.message() : "it has no address";
  for (const auto& entry : entries) found.push_back(entry.endpoint().address());
  co_return found;
}

double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

asio::awaitable<Result<Addresses>> look_up(asio::io_context& loop, std::string host,
                                           std::chrono::milliseconds limit) {
  error_code not_numeric;
  const auto numeric = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) co_return Addresses{numeric};
  // A job on one node must not fail on a host whose hosts file lacks the name.
  if (host == "localhost") co_return Addresses{loopback_address()};
  const Clock::time_point deadline = Clock::now() + limit;
  asio::steady_timer pause(loop);
  // Any failure counts as "not known yet": the resolver of a pod that just began may have no server
  // to ask, and says so with other errors than "host not found".
  for (bool told = false;; told = true) {
    std::string why;
    Addresses found = co_await ask(loop, host, deadline - Clock::now(), why);
    if (!found.empty()) co_return found;
    if (Clock::now() >= deadline)
      co_return Error(ErrorCode::kNotFound,
                      fmt::format("rendezvous: the host '{}' was looked up for {} s: {}", host,
                                  seconds(limit), why));
    if (!told)
      log::warning(
          fmt::format("the host '{}' of the rendezvous is not known yet ({}); looking it "
                      "up again for up to {} s",
                      host, why, seconds(limit)));
    co_await expires(pause,
                     std::min<std::chrono::nanoseconds>(kLookUpEvery, deadline - Clock::now()));
  }
}

}  // namespace ddprun::agent
