#include "base/net/name_lookup.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "base/duration.h"
#include "base/log.h"
#include "base/net/addresses.h"
#include "base/wait_schedule.h"

namespace ddprun {
namespace {

using asio::ip::address;
using asio::ip::tcp;
using boost::system::error_code;
using Addresses = std::vector<address>;
using Clock = std::chrono::steady_clock;

// One question to the resolver. getaddrinfo(3) takes some seconds if a DNS server is dead, and
// nothing can interrupt it. The caller may have gone on before the answer comes.
struct Question {
  explicit Question(asio::io_context& loop) : resolver(loop), answered(loop) {}
  tcp::resolver resolver;
  asio::steady_timer answered;  // cancelled by the answer
  Addresses found;
  std::string why;  // no address was found; empty: no answer yet
};

// Asks the resolver once and waits until `deadline`. Calls `look` when the wait is to be told.
asio::awaitable<std::shared_ptr<Question>> ask(asio::io_context& loop, const std::string& host,
                                               Clock::time_point deadline,
                                               std::function<Clock::time_point()> look) {
  auto question = std::make_shared<Question>(loop);
  question->resolver.async_resolve(
      host, "", [question](const error_code& failure, const tcp::resolver::results_type& entries) {
        question->why = failure ? failure.message() : "it has no address";
        for (const auto& entry : entries) question->found.push_back(entry.endpoint().address());
        question->answered.cancel();
      });
  while (question->why.empty() && question->found.empty()) {
    const auto now = Clock::now();
    if (now >= deadline) break;
    co_await expires(question->answered, std::min(deadline, look()) - now);
  }
  co_return question;
}

// `ends`: now, where the wait has no end.
std::string waiting_for(const std::string& host, const std::string& why,
                        std::chrono::seconds waited, Clock::time_point ends) {
  const auto left = std::chrono::ceil<std::chrono::seconds>(ends - Clock::now()).count();
  return fmt::format("waiting for {} s for the address of '{}', the host of the rendezvous: {}{}",
                     waited.count(), host, why,
                     left > 0 ? fmt::format(", giving up in {} s", left) : "");
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
  // Any failure counts as "not known yet". The resolver of a pod that just began may have no server
  // to ask. It says so with other errors than "host not found".
  std::string why = "the resolver does not answer";
  const bool is_endless = limit >= std::chrono::hours(24 * 365);
  WaitSchedule schedule;
  schedule.begin(Clock::now());
  const auto look = [&] {
    const auto now = Clock::now();
    if (schedule.is_due(now))
      log::warning(waiting_for(host, why, schedule.waited(now), is_endless ? now : deadline));
    return schedule.look_again_at();
  };
  for (bool told = false;; told = true) {
    const auto question = co_await ask(loop, host, deadline, look);
    if (!question->found.empty()) co_return question->found;
    // Nobody but a module of the C library may know this host's own name, and a static program
    // loads none.
    if (host == host_name()) co_return Addresses{outside_address()};
    // The last question may be cut short by the deadline: then the answer before it says more.
    if (!question->why.empty()) why = question->why;
    if (Clock::now() >= deadline)
      co_return Error(ErrorCode::kNotFound,
                      fmt::format("rendezvous: the host '{}' was looked up for {} s: {}", host,
                                  in_seconds(limit), why));
    if (!told)
      log::warning(fmt::format(
          "the host '{}' of the rendezvous is not known yet ({}); looking it "
          "up again{}",
          host, why, is_endless ? "" : fmt::format(" for up to {} s", in_seconds(limit))));
    look();
    co_await expires(pause,
                     std::min<std::chrono::nanoseconds>(kLookUpEvery, deadline - Clock::now()));
  }
}

}  // namespace ddprun
