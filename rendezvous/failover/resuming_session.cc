#include "rendezvous/failover/resuming_session.h"

#include <utility>
#include <variant>

#include "base/assert.h"

namespace ddprun::rendezvous {

ResumingSession::ResumingSession(asio::io_context& loop, Open open,
                                 std::chrono::milliseconds rejoin_limit, MessageHandler handler)
    : FailoverSession(loop, {.policy = HostPolicy::kSameHost, .rejoin_limit = rejoin_limit},
                      std::move(handler)),
      loop_(loop),
      open_(std::move(open)) {
  perform(failover().start());
}

UnreachedHost ResumingSession::unreached() const {
  if (failover().takes_words()) return session()->unreached();
  return {.why = failover().last_loss(), .ends = failover().gives_up_at()};
}

std::unique_ptr<Session> ResumingSession::open() {
  return open_(
      failover().workers_until(),
      [this](const std::string& address, std::uint16_t port) {
        host_ = {{asio::ip::make_address(address), port}};
        perform(failover().admitted(std::chrono::steady_clock::now()));
      },
      [this](const HostMessage& message) { on_message(message); });
}

void ResumingSession::act(const FailoverAction& action) {
  if (std::holds_alternative<StopProbing>(action)) return probe_.reset();
  DDPRUN_ASSERT(std::holds_alternative<ProbeHost>(action));
  probe_ =
      std::make_unique<LivenessProbe>(loop_, host_, [this] { perform(failover().host_died()); });
}

}  // namespace ddprun::rendezvous
