#include "base/net/name_lookup.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
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

// Says from time to time that an address is still waited for, and why.
class LookUpNotice {
 public:
  LookUpNotice(const std::string& host, std::chrono::milliseconds limit)
      : host_(host),
        limit_(limit),
        is_endless_(limit >= std::chrono::hours(24 * 365)),
        deadline_(Clock::now() + limit) {
    schedule_.begin(Clock::now());
  }

  Clock::time_point deadline() const { return deadline_; }
  const std::string& why() const { return why_; }
  // The last question may be cut short by the deadline: then the answer before it says more.
  void set_reason(const std::string& why) {
    if (!why.empty()) why_ = why;
  }
  void tell_first() const {
    log::warning(fmt::format(
        "the host '{}' of the rendezvous is not known yet ({}); looking it up again{}", host_, why_,
        is_endless_ ? "" : fmt::format(" for up to {} s", in_seconds(limit_))));
  }
  // Tells it if it is due. Returns when to look at it again.
  Clock::time_point tell() {
    const auto now = Clock::now();
    if (schedule_.is_due(now))
      log::warning(waiting_for(host_, why_, schedule_.waited(now), is_endless_ ? now : deadline_));
    return schedule_.look_again_at();
  }

 private:
  const std::string& host_;
  const std::chrono::milliseconds limit_;
  const bool is_endless_;
  const Clock::time_point deadline_;
  WaitSchedule schedule_;
  // Any failure counts as "not known yet". The resolver of a pod that just began may have no server
  // to ask. It says so with other errors than "host not found".
  std::string why_ = "the resolver does not answer";
};

// Returns what needs no question: a numeric address, and the loopback of "localhost". A job on one
// node must not fail on a host whose hosts file lacks that name.
std::optional<address> known_address(const std::string& host) {
  error_code not_numeric;
  const auto numeric = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) return numeric;
  return host == "localhost" ? std::optional(loopback_address()) : std::nullopt;
}

}  // namespace

asio::awaitable<Result<Addresses>> look_up(asio::io_context& loop, std::string host,
                                           std::chrono::milliseconds limit) {
  if (const auto known = known_address(host)) co_return Addresses{*known};
  LookUpNotice notice(host, limit);
  asio::steady_timer pause(loop);
  const Clock::time_point deadline = notice.deadline();
  for (bool told = false;; told = true) {
    const auto question = co_await ask(loop, host, deadline, [&] { return notice.tell(); });
    if (!question->found.empty()) co_return question->found;
    // Nobody but a module of the C library may know this host's own name, and a static program
    // loads none.
    if (host == host_name()) co_return Addresses{outside_address()};
    notice.set_reason(question->why);
    if (Clock::now() >= deadline)
      co_return Error(ErrorCode::kNotFound,
                      fmt::format("rendezvous: the host '{}' was looked up for {} s: {}", host,
                                  in_seconds(limit), notice.why()));
    if (!told) notice.tell_first();
    notice.tell();
    co_await expires(pause,
                     std::min<std::chrono::nanoseconds>(kLookUpEvery, deadline - Clock::now()));
  }
}

}  // namespace ddprun
