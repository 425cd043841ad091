#include "rendezvous/grpc/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/duration.h"
#include "base/log.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/client_call.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/loop_gate.h"
#include "rendezvous/trust/tls_channels.h"
#include "rendezvous/trust/tls_probe.h"

namespace ddprun::rendezvous {
namespace {

// The pause between two attempts to reach a host that is not up yet.
constexpr std::chrono::milliseconds kRetryEvery{100};
// The pause before a heartbeat that could not be sent is tried again.
constexpr std::chrono::milliseconds kHeartbeatRetry{250};
// The pause before a node that came back, with the lease of before, tries its first heartbeat
// again. It comes behind what the node says to come back.
constexpr std::chrono::milliseconds kFirstHeartbeatRetry{10};

// gRPC's own words where the peer's kernel has closed the connection. A reset has others.
constexpr std::string_view kClosed = "Socket closed";

// We wait so long for the end of a cancelled call. Then its memory is given up (keep_for_ever()).
constexpr std::chrono::milliseconds kCancelLimit{50};

std::chrono::milliseconds stamp() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

// Returns the text of the peer's status. Anybody may be the peer, and this is for our log.
std::string text_of(const grpc::Status& status) {
  std::string text = status.error_message().substr(0, kMaxTextBytes);
  std::ranges::replace_if(
      text, [](unsigned char letter) { return std::iscntrl(letter) != 0; }, '?');
  return text;
}

// gRPC begins with a sentence that says nothing, and a code that it does not know itself.
std::string without_preamble(std::string text) {
  constexpr std::string_view kLast = "last error: ";
  constexpr std::string_view kCode = "UNKNOWN: ";
  if (const auto at = text.rfind(kLast); at != std::string::npos) text.erase(0, at + kLast.size());
  if (text.starts_with(kCode)) text.erase(0, kCode.size());
  return text;
}

// The node's session. Loop's thread only.
class RemoteSession final : public Session {
 public:
  RemoteSession(boost::asio::io_context& loop, RemoteOptions options, MessageHandler handler);
  RemoteSession(const RemoteSession&) = delete;
  RemoteSession& operator=(const RemoteSession&) = delete;
  ~RemoteSession() override;

  void join(const NodeSpec& node) override { say(node); }
  void resume(const ResumeRequest& node) override { say(node); }
  void report_failure(std::int64_t round, const Failure& failure) override {
    say(WorkerFailed{round, failure});
  }
  void report_success(std::int64_t round) override { say(NodeSucceeded{round}); }
  void suspect(std::int64_t round) override {
    if (takes_evidence()) say(Suspicion{round});
  }
  void give_evidence(std::int64_t round, std::int64_t inquiry,
                     const std::vector<RankEvidence>& evidence) override;
  void report_replicas(const ReplicaReport& report) override;
  void report_steps(const StepReport& report) override;
  void give_notice(const Notice& notice) override;
  void answer_step(const StepAnswer& answer) override;
  void leave(const Failure& reason) override;
  void gone() override;
  std::optional<WaitStatus> wait_status() const override { return grant_.wait_status; }
  UnreachedHost unreached() const override;
  void abandon() override { state_ = State::kOver; }
  std::chrono::steady_clock::time_point lease_ends() const override {
    return std::chrono::steady_clock::time_point(lease_.ends());  // the clock of stamp()
  }

 private:
  friend class ClientCall<RemoteSession>;
  using Call = ClientCall<RemoteSession>;
  using SharedGate = std::shared_ptr<LoopGate<RemoteSession>>;
  enum class State { kConnecting, kConnected, kOver };

  void say(const NodeMessage& message);
  bool takes_evidence() const;
  bool end_after_leave();
  void attempt();
  void connected();
  const std::string& address() const {
    return options_.addresses[attempts_ % options_.addresses.size()];
  }
  std::uint16_t port() const {
    const auto next = attempts_ / options_.addresses.size() % port_count();
    return static_cast<std::uint16_t>(options_.port + next);
  }
  std::size_t port_count() const { return static_cast<std::size_t>(options_.port_count); }
  void challenged(const Challenge& challenge);
  void distrust() { end(ErrorCode::kRejected, NodeHandshake::kDistrust); }
  void on_message(const std::shared_ptr<Call>& call, const Result<DownMessage>& message);
  void add_lease(SessionLost& lost) const;
  void renew_lease(const LeaseGrant& grant);
  void watch_lease();
  void finished(const std::shared_ptr<Call>& call, const grpc::Status& status);
  void schedule_heartbeat();
  void heartbeat();
  void set_timer(boost::asio::steady_timer& timer, std::chrono::milliseconds after,
                 void (RemoteSession::*act)());
  void stop_timers();
  void find_out_why();
  void not_reached(const std::string& tls_problem);
  void give_up_connecting();
  void end(ErrorCode code, const std::string& what, bool is_fenced = false,
           bool was_closed = false);
  void deliver(const HostMessage& message);
  static void keep_for_ever(std::shared_ptr<Call> call);

  RemoteOptions options_;
  const MessageHandler handler_;
  SharedGate gate_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer next_step_;  // retries while connecting, heartbeats once connected
  boost::asio::steady_timer lease_watch_;
  State state_ = State::kConnecting;
  bool left_ = false;
  bool said_gone_ = false;
  std::vector<v4::FromNode> unsent_;  // said before we were connected
  std::string last_problem_;
  HeldLease lease_;   // on the clock of stamp()
  LeaseGrant grant_;  // the last
  bool is_uncompared_told_ = false;
  std::vector<HostMessage> held_;  // until the next: they must not start workers of an old round
  std::map<std::pair<std::string, std::uint16_t>, std::unique_ptr<v4::Rendezvous::Stub>> stubs_;
  std::size_t attempts_ = 0;
  std::string tls_problem_;  // what is wrong with TLS, as far as the last attempt told
  NodeHandshake handshake_;  // of the attempt
  ChannelMark channels_since_ = 0;
  std::shared_ptr<Call> call_;
};

RemoteSession::RemoteSession(boost::asio::io_context& loop, RemoteOptions options,
                             MessageHandler handler)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      gate_(std::make_shared<LoopGate<RemoteSession>>(loop, *this)),
      deadline_(loop),
      next_step_(loop),
      lease_watch_(loop),
      handshake_(options_.token, options_.rdzv_id) {
  if (const auto error = check_lengths(options_.token.key, options_.rdzv_id)) {
    gate_->post([error](RemoteSession& session) {
      session.state_ = State::kOver;
      session.deliver(SessionLost{*error});
    });
    return;
  }
  if (options_.addresses.empty()) options_.addresses = {options_.host};
  if (options_.workers_until)
    lease_.carry(std::chrono::duration_cast<std::chrono::milliseconds>(
        options_.workers_until->time_since_epoch()));
  set_timer(deadline_, options_.read_timeout, &RemoteSession::give_up_connecting);
  attempt();
}

RemoteSession::~RemoteSession() {
  gate_->close();
  if (!call_ || end_after_leave()) return;
  call_->cut();
  if (call_->wait_done(kCancelLimit)) return;
  keep_for_ever(std::move(call_));
}

// gRPC may still use the call. So it is never freed, not even at the end of the process.
void RemoteSession::keep_for_ever(std::shared_ptr<Call> call) {
  static auto* const kept = new std::vector<std::shared_ptr<Call>>;
  kept->push_back(std::move(call));
}

// A session that is not connected has nobody to tell. Afterwards heartbeats go on: the workers that
// still run must end if the host hears us no more.
void RemoteSession::leave(const Failure& reason) {
  if (state_ == State::kConnected) {
    left_ = true;
    return call_->send(encode(Leave{reason}));
  }
  state_ = State::kOver;
  stop_timers();
}

// Called after leave(). It blocks until the host has read everything, at most for leave_limit.
// Otherwise the end of this process, or of the call, could overtake what was said. The host's
// receipt is that it ends the call. True if there is nothing more to do with the call.
bool RemoteSession::end_after_leave() {
  gone();
  return left_ && state_ == State::kConnected && call_->wait_done(options_.leave_limit);
}

void RemoteSession::gone() {
  // A lease has ended: the host need not wait out its patience any more.
  if (state_ == State::kOver && call_) call_->cut();
  if (!left_ || said_gone_ || state_ != State::kConnected) return;
  said_gone_ = true;
  next_step_.cancel();
  lease_watch_.cancel();
  call_->send(encode(Gone{}));
  call_->close();
}

// A host that does not read gets no more of it: the queue is for what the round needs.
bool RemoteSession::takes_evidence() const {
  return state_ == State::kConnected && grant_.takes_evidence && call_->has_room();
}

void RemoteSession::give_evidence(std::int64_t round, std::int64_t inquiry,
                                  const std::vector<RankEvidence>& evidence) {
  if (!takes_evidence()) return;
  for (const Evidence& part : split({round, inquiry, evidence})) say(part);
}

void RemoteSession::report_replicas(const ReplicaReport& report) {
  if (state_ == State::kConnected && lease_.is_held() && !grant_.takes_replicas &&
      !std::exchange(is_uncompared_told_, true))
    log::warning("--check-replicas: the host of the rendezvous is older and compares nothing");
  if (state_ == State::kConnected && grant_.takes_replicas && call_->has_room()) say(report);
}

void RemoteSession::report_steps(const StepReport& report) {
  if (state_ == State::kConnected && grant_.takes_steps && call_->has_room()) say(report);
}

void RemoteSession::give_notice(const Notice& notice) {
  if (state_ == State::kConnected && grant_.takes_notices && call_->has_room()) say(notice);
}

void RemoteSession::answer_step(const StepAnswer& answer) {
  if (state_ == State::kConnected && grant_.takes_notices && call_->has_room()) say(answer);
}

void RemoteSession::say(const NodeMessage& message) {
  if (state_ == State::kConnecting) unsent_.push_back(encode(message));
  if (state_ == State::kConnected) call_->send(encode(message));
}

// A new call each time; gRPC cannot start one twice. Events of the old one are ignored. The
// addresses of the host take turns.
void RemoteSession::attempt() {
  channels_since_ = mark_channels();
  auto& stub = stubs_[{address(), port()}];
  // With TLS it is a new one each time. The files may be new, and its channel is made after the
  // mark.
  if (!stub || options_.tls.is_set()) {
    const auto channel = make_channel(address(), port(), {options_.tls, options_.host});
    if (!channel) return find_out_why();
    stub = v4::Rendezvous::NewStub(channel);
  }
  call_ = std::make_shared<Call>(gate_);
  call_->start(*stub, options_.rdzv_id, handshake_.begin());
}

void RemoteSession::challenged(const Challenge& challenge) {
  auto proof =
      handshake_.challenged(challenge, client_channels(channels_since_, options_.tls.is_set()));
  if (!proof) return distrust();
  call_->send(encode(*std::move(proof)));
}

// Messages of before are sent only now: an attempt that failed would have lost them.
void RemoteSession::connected() {
  state_ = State::kConnected;
  deadline_.cancel();
  for (v4::FromNode& message : std::exchange(unsent_, {})) call_->send(std::move(message));
  if (options_.on_admitted) options_.on_admitted(address(), port());
}

void RemoteSession::on_message(const std::shared_ptr<Call>& call,
                               const Result<DownMessage>& message) {
  if (call != call_ || state_ == State::kOver) return;
  if (!message) return end(ErrorCode::kProtocol, message.error().message());
  if (const auto* challenge = std::get_if<Challenge>(&*message)) return challenged(*challenge);
  if (const auto* admitted = std::get_if<HostProof>(&*message)) handshake_.admitted(*admitted);
  if (!handshake_.is_believed()) return distrust();
  if (std::holds_alternative<HostProof>(*message)) return;
  if (state_ == State::kConnecting) connected();
  if (const auto* grant = std::get_if<LeaseGrant>(&*message)) return renew_lease(*grant);
  HostMessage said = std::get<HostMessage>(*message);
  if (auto* const lost = std::get_if<SessionLost>(&said)) add_lease(*lost);
  if (lease_.is_doubted(stamp()) && !is_last(said)) return held_.push_back(std::move(said));
  deliver(said);
}

// ---- the lease ----

// The host does not say how long the workers may live, and whether the node may come back.
void RemoteSession::add_lease(SessionLost& lost) const {
  // Another host may follow one that lost its leadership or that ends.
  const bool may_follow = lost.error.code() == ErrorCode::kLostLeadership ||
                          lost.error.code() == ErrorCode::kUnavailable;
  if (may_follow || options_.workers_until) lost.lease_ends = lease_ends();
  if (!may_follow) return;
  lost.may_return = grant_.may_return;
  lost.was_suspended = lease_.was_suspended(stamp());
  lost.host_returns = grant_.host_returns;
}

void RemoteSession::renew_lease(const LeaseGrant& grant) {
  if (said_gone_) return;
  // The first lease answers no heartbeat.
  if (options_.heartbeat_answered && lease_.is_held())
    options_.heartbeat_answered(stamp() - grant.stamp);
  // Not later than now, whatever the host sends.
  const auto from = lease_.is_held() ? std::min(grant.stamp, stamp()) : stamp();
  lease_.renewed(from, grant.lease);
  grant_ = grant;
  watch_lease();
  const SharedGate gate = gate_;  // each message may end this session
  if (!lease_.is_doubted(stamp()))
    for (const HostMessage& said : std::exchange(held_, {}))
      if (gate->owner() != nullptr) deliver(said);
}

void RemoteSession::schedule_heartbeat() {
  set_timer(next_step_, std::max(lease_.next_heartbeat() - stamp(), std::chrono::milliseconds(0)),
            &RemoteSession::heartbeat);
}

void RemoteSession::heartbeat() {
  // If a message waits to be written, a heartbeat would wait behind it. It would fill the queue of
  // a host that does not read. The next try comes soon: a lease is not much longer than the time
  // between heartbeats.
  if (!call_->idle())
    return set_timer(next_step_,
                     std::min(lease_.lease().heartbeat_every,
                              lease_.is_carried() ? kFirstHeartbeatRetry : kHeartbeatRetry),
                     &RemoteSession::heartbeat);
  const auto now = stamp();
  lease_.heartbeat_sent(now);
  call_->send(encode(Heartbeat{now}));
  schedule_heartbeat();
}

void RemoteSession::watch_lease() {
  if (!lease_.is_over(stamp())) {
    schedule_heartbeat();
    const auto ends = std::max(lease_.ends(), lease_.look_at());
    if (options_.lease_moved) options_.lease_moved(std::chrono::steady_clock::time_point(ends));
    return set_timer(lease_watch_, lease_.look_at() - stamp(), &RemoteSession::watch_lease);
  }
  end(ErrorCode::kUnavailable,
      fmt::format("the host was silent for {} s", in_seconds(lease_.lease().length)), true);
}

// ---- the end ----

void RemoteSession::finished(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  if (call != call_ || state_ == State::kOver) return;
  if (handshake_.host() == NodeHandshake::Host::kRefuted) return distrust();
  // A peer that cannot be reached, or that cuts us before it has let us in. It has too many
  // callers, or we were slow. Any other status is an answer, and another attempt would get the same
  // one.
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                           status.error_code() == grpc::StatusCode::CANCELLED;
  // The lease may have ended while this process was suspended, and nobody looked.
  if (state_ == State::kConnected)
    return end(ErrorCode::kUnavailable,
               "the connection broke: " + (status.ok() ? "the host ended" : status.error_message()),
               lease_.is_held() && stamp() >= lease_.ends(), status.error_message() == kClosed);
  const bool is_another_job = status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
  if (unreachable || (is_another_job && options_.port_count > 1)) {
    last_problem_ = text_of(status);
    return find_out_why();
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED)
    return end(ErrorCode::kProtocol, "the peer speaks another version of the protocol");
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) return distrust();
  if (is_another_job) return end(ErrorCode::kRejected, "refused: " + text_of(status));
  end(ErrorCode::kProtocol, fmt::format("the call failed with gRPC status {}: {}",
                                        static_cast<int>(status.error_code()), text_of(status)));
}

UnreachedHost RemoteSession::unreached() const {
  if (state_ != State::kConnecting) return {};
  return {.why = tls_problem_.empty() ? without_preamble(last_problem_) : tls_problem_,
          .ends = deadline_.expiry()};
}

void RemoteSession::find_out_why() {
  if (!options_.tls.is_set()) return not_reached("");
  probe_tls(deadline_.get_executor(), {address(), port(), options_.host, options_.tls},
            [gate = gate_](const TlsProblem& problem) {
              if (gate->owner() != nullptr) gate->owner()->not_reached(problem.text);
            });
}

// A host that is just ending may look as if it refused us. A refusal that comes twice is believed.
void RemoteSession::not_reached(const std::string& tls_problem) {
  if (state_ != State::kConnecting) return;
  if (!tls_problem.empty() && (tls_problem == tls_problem_ || !options_.tries_again))
    return end(ErrorCode::kRejected, tls_problem);
  tls_problem_ = tls_problem;
  // The next port may be the right one, and a session that tries once tries all of them. A pause
  // comes after the last one.
  const bool is_last_one = ++attempts_ % (options_.addresses.size() * port_count()) == 0;
  if (!is_last_one && (port_count() > 1 || !options_.tries_again)) return attempt();
  if (!options_.tries_again) return end(ErrorCode::kUnavailable, "not reached: " + last_problem_);
  set_timer(next_step_, kRetryEvery, &RemoteSession::attempt);
}

void RemoteSession::give_up_connecting() {
  if (state_ != State::kConnecting) return;
  std::string what =
      fmt::format("nobody answered within read_timeout={} s", in_seconds(options_.read_timeout));
  if (!last_problem_.empty()) what += " (" + last_problem_ + ")";
  end(ErrorCode::kTimedOut, what);
}

void RemoteSession::set_timer(boost::asio::steady_timer& timer, std::chrono::milliseconds after,
                              void (RemoteSession::*act)()) {
  timer.expires_after(after);
  // Asks the gate and holds no `this`: the handler may run after our end.
  timer.async_wait([gate = gate_, act](const boost::system::error_code& error) {
    RemoteSession* const session = gate->owner();
    if (!error && session != nullptr && session->state_ != State::kOver) (session->*act)();
  });
}

void RemoteSession::end(ErrorCode code, const std::string& what, bool is_fenced, bool was_closed) {
  // At the end of a lease the call stays. The host would hear of its end at once. The others might
  // start before the workers here are gone.
  if (call_ && !is_fenced) call_->cut();
  deliver(SessionLost{
      .error = {code, "rendezvous at " + endpoint(options_.host, options_.port) + ": " + what},
      .is_fenced = is_fenced,
      .was_reached = state_ != State::kConnecting,
      .was_closed = was_closed,
      .lease_ends = lease_ends(),
      .was_suspended = lease_.was_suspended(stamp()),
      .may_return = grant_.may_return,
      .host_returns = grant_.host_returns});
}

void RemoteSession::stop_timers() {
  for (auto* timer : {&deadline_, &next_step_, &lease_watch_}) timer->cancel();
}

// The handler may destroy the session. So it is called as a copy, and nothing is touched after it.
void RemoteSession::deliver(const HostMessage& message) {
  if (is_last(message)) {
    state_ = State::kOver;
    stop_timers();
  }
  const MessageHandler handler = handler_;
  handler(message);
}

}  // namespace

std::unique_ptr<Session> open_remote_session(boost::asio::io_context& loop, RemoteOptions options,
                                             Session::MessageHandler handler) {
  return std::make_unique<RemoteSession>(loop, std::move(options), std::move(handler));
}

}  // namespace ddprun::rendezvous
