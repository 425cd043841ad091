#include "rendezvous/client.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/call_writer.h"
#include "rendezvous/channel.h"
#include "rendezvous/codec.h"
#include "rendezvous/loop_gate.h"

namespace ddprun::rendezvous {
namespace {

// The pause between two attempts to reach a host that is not up yet.
constexpr std::chrono::milliseconds kRetryEvery{100};
// The pause before a beat that could not be sent is tried again.
constexpr std::chrono::milliseconds kBeatRetry{250};

// How long we wait for the end of a cancelled call, which normally takes microseconds. If it takes
// longer, the call's memory is given up (keep_for_ever()), so that the agent is not held up.
constexpr std::chrono::milliseconds kCancelLimit{50};

// What a beat carries: this process's own clock.
std::chrono::milliseconds stamp() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// Refuses what would not fit into the metadata of a call: gRPC allows 8 KiB for all of it by
// default, and its own error would name no option.
std::optional<Error> check(const RemoteOptions& options) {
  if (options.token.size() > kMaxTextBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: the token has {} bytes, more than {}",
                             options.token.size(), kMaxTextBytes));
  if (options.rdzv_id.size() > kMaxNameBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: rdzv_id has {} bytes, more than {}",
                             options.rdzv_id.size(), kMaxNameBytes));
  return std::nullopt;
}

bool is_last(const HostMessage& message) {
  return std::holds_alternative<JobEnded>(message) || std::holds_alternative<SessionLost>(message);
}

// The node's session. Loop's thread only.
class RemoteSession final : public Session {
 public:
  RemoteSession(boost::asio::io_context& loop, RemoteOptions options, MessageHandler handler);
  RemoteSession(const RemoteSession&) = delete;
  RemoteSession& operator=(const RemoteSession&) = delete;
  ~RemoteSession() override;

  void join(const NodeSpec& node) override { say(node); }
  void report_failure(std::int64_t round, const Failure& failure) override {
    say(WorkerFailed{round, failure});
  }
  void report_success(std::int64_t round) override { say(NodeSucceeded{round}); }
  void leave(const Failure& reason) override;
  void gone() override;
  std::optional<Gathering> gathering() const override { return gathering_; }

 private:
  class Call;
  using SharedGate = std::shared_ptr<LoopGate<RemoteSession>>;
  enum class State { kConnecting, kConnected, kOver };

  void say(const NodeMessage& message);
  bool end_after_leave();
  void attempt();
  void connected();
  void heard(const std::shared_ptr<Call>& call, const Result<DownMessage>& message);
  void renew_lease(const LeaseGrant& grant);
  void watch_lease();
  void finished(const std::shared_ptr<Call>& call, const grpc::Status& status);
  void schedule_beat();
  void beat();
  void set_timer(boost::asio::steady_timer& timer, std::chrono::milliseconds after,
                 void (RemoteSession::*act)());
  void stop_timers();
  void give_up_connecting();
  void end(ErrorCode code, const std::string& what, bool is_fenced = false);
  void deliver(const HostMessage& message);
  static void keep_for_ever(std::shared_ptr<Call> call);

  RemoteOptions options_;
  const MessageHandler handler_;
  SharedGate gate_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer next_step_;  // retries while connecting, beats once connected
  boost::asio::steady_timer lease_watch_;
  State state_ = State::kConnecting;
  bool left_ = false;
  bool said_gone_ = false;
  std::vector<v2::FromNode> unsent_;  // said before we were connected
  std::string last_problem_;
  HeldLease lease_;  // on the clock of stamp()
  std::optional<Gathering> gathering_;
  std::vector<std::unique_ptr<v2::Rendezvous::Stub>> stubs_;  // one for each address of the host
  std::size_t attempts_ = 0;
  std::shared_ptr<Call> call_;
};

// One gRPC call: an attempt to connect, which becomes the session if the host lets us in. Lives
// until gRPC is done with it (self_) and the session has dropped it (call_).
class RemoteSession::Call final : public grpc::ClientBidiReactor<v2::FromNode, v2::ToNode>,
                                  public std::enable_shared_from_this<Call> {
 public:
  explicit Call(SharedGate gate) : gate_(std::move(gate)) {}

  // ---- loop's thread ----
  void start(v2::Rendezvous::Stub& stub, const RemoteOptions& options) {
    self_ = shared_from_this();
    if (!options.token.empty()) context_.AddMetadata(kTokenMetadata, options.token);
    context_.AddMetadata(kJobMetadata, options.rdzv_id);
    stub.async()->OpenSession(&context_, this);
    // Held until the writer has ended. The loop writes from outside gRPC's callbacks, and without a
    // hold gRPC may free the call meanwhile (grpcpp/support/client_callback.h).
    AddHold();
    StartRead(&in_);
    StartCall();
  }
  void send(v2::FromNode message) { perform(writer_.send(std::move(message))); }
  bool idle() const { return writer_.idle(); }
  // No message follows those that were sent. The host ends the call when it has read a Gone.
  void close() { perform(writer_.close()); }
  // Breaks the call off; what is queued is dropped.
  void cut() {
    context_.TryCancel();
    perform(writer_.abandon());
  }
  // Blocks for at most `limit`. True: gRPC is done with the call and does not touch it any more.
  bool wait_done(std::chrono::milliseconds limit) {
    return done_future_.wait_for(limit) == std::future_status::ready;
  }

  // ---- gRPC's threads ----
  void OnReadDone(bool ok) override {
    if (!ok) return perform(writer_.abandon());
    gate_->post([self = self_, message = decode(in_)](RemoteSession& session) {
      session.heard(self, message);
    });
    // Not left to the loop: gRPC tells the end of a call only when nothing is left to read.
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override { perform(writer_.written(ok)); }
  void OnDone(const grpc::Status& status) override {
    // A copy, because the loop may destroy us before set_value() returns.
    const auto done = done_;
    gate_->post([self = std::move(self_), status](RemoteSession& session) {
      session.finished(self, status);
    });
    done->set_value();
  }

 private:
  // Write-through: OnWriteDone() then means that the bytes are in the socket and in no buffer of
  // gRPC, where they would be lost with this process.
  void perform(CallWriter<v2::FromNode>::Step step) {
    if (step.write != nullptr) StartWrite(step.write, grpc::WriteOptions().set_write_through());
    if (step.end) RemoveHold();
    if (step.overflow) context_.TryCancel();  // the write under way then fails, and the queue too
  }

  const SharedGate gate_;
  grpc::ClientContext context_;
  v2::ToNode in_;
  CallWriter<v2::FromNode> writer_;
  const std::shared_ptr<std::promise<void>> done_ = std::make_shared<std::promise<void>>();
  const std::future<void> done_future_ = done_->get_future();
  std::shared_ptr<Call> self_;
};

RemoteSession::RemoteSession(boost::asio::io_context& loop, RemoteOptions options,
                             MessageHandler handler)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      gate_(std::make_shared<LoopGate<RemoteSession>>(loop, *this)),
      deadline_(loop),
      next_step_(loop),
      lease_watch_(loop) {
  if (const auto error = check(options_)) {
    gate_->post([error](RemoteSession& session) {
      session.state_ = State::kOver;
      session.deliver(SessionLost{*error});
    });
    return;
  }
  if (options_.addresses.empty()) options_.addresses = {options_.host};
  for (const std::string& address : options_.addresses)
    stubs_.push_back(v2::Rendezvous::NewStub(make_channel(address, options_.port)));
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

// gRPC may still use the call. So it is never freed, not even when the process exits: hence `new`.
void RemoteSession::keep_for_ever(std::shared_ptr<Call> call) {
  static auto* const kept = new std::vector<std::shared_ptr<Call>>;
  kept->push_back(std::move(call));
}

// A session that is not connected has nobody to tell. Afterwards beats go on: the workers that still
// run must end if the host hears us no more.
void RemoteSession::leave(const Failure& reason) {
  if (state_ == State::kConnected) {
    left_ = true;
    return call_->send(encode(Leave{reason}));
  }
  state_ = State::kOver;
  stop_timers();
}

// After leave(): blocks until the host has read everything, at most for leave_limit. Otherwise the
// end of this process, or of the call, could overtake what was said. The host's receipt is that it
// ends the call. True if there is nothing more to do with the call.
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

void RemoteSession::say(const NodeMessage& message) {
  if (state_ == State::kConnecting) unsent_.push_back(encode(message));
  if (state_ == State::kConnected) call_->send(encode(message));
}

// A new call each time; gRPC cannot start one twice. What the old one still posts is ignored, since
// it is not call_ any more. The addresses of the host take turns.
void RemoteSession::attempt() {
  call_ = std::make_shared<Call>(gate_);
  call_->start(*stubs_[attempts_++ % stubs_.size()], options_);
}

// What was said before is sent only now: an attempt that failed would have lost it.
void RemoteSession::connected() {
  state_ = State::kConnected;
  deadline_.cancel();
  for (v2::FromNode& message : std::exchange(unsent_, {})) call_->send(std::move(message));
  if (options_.let_in) options_.let_in();
}

void RemoteSession::heard(const std::shared_ptr<Call>& call, const Result<DownMessage>& message) {
  if (call != call_ || state_ == State::kOver) return;
  if (!message) return end(ErrorCode::kProtocol, message.error().message());
  if (state_ == State::kConnecting) connected();
  if (const auto* grant = std::get_if<LeaseGrant>(&*message)) return renew_lease(*grant);
  deliver(std::get<HostMessage>(*message));
}

// ---- the lease ----

void RemoteSession::renew_lease(const LeaseGrant& grant) {
  if (said_gone_) return;
  // Not later than now, whatever the host sends.
  const auto from = lease_.is_held() ? std::min(grant.stamp, stamp()) : stamp();
  lease_.renewed(from, grant.lease);
  gathering_ = grant.gathering;
  // Both anew each time: a lease may also be shorter than the one before.
  schedule_beat();
  watch_lease();
}

void RemoteSession::schedule_beat() {
  set_timer(next_step_, std::max(lease_.next_beat() - stamp(), std::chrono::milliseconds(0)),
            &RemoteSession::beat);
}

void RemoteSession::beat() {
  // If a message waits to be written, a beat would wait behind it, and fill the queue of a host that
  // does not read. The next try comes soon: a lease is not much longer than the time between beats.
  if (!call_->idle())
    return set_timer(next_step_, std::min(lease_.lease().beat_every, kBeatRetry),
                     &RemoteSession::beat);
  const auto now = stamp();
  lease_.beat_sent(now);
  call_->send(encode(Beat{now}));
  schedule_beat();
}

void RemoteSession::watch_lease() {
  const auto left = lease_.ends() - stamp();
  if (left.count() > 0) return set_timer(lease_watch_, left, &RemoteSession::watch_lease);
  end(ErrorCode::kUnavailable,
      fmt::format("the host was silent for {} s", seconds(lease_.lease().length)), true);
}

// ---- the end ----

void RemoteSession::finished(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  if (call != call_ || state_ == State::kOver) return;
  // gRPC's status for a peer that cannot be reached. Any other status is an answer of the peer, and
  // another attempt would get the same one.
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  // The lease may have ended while this process stood still, and nobody looked.
  if (state_ == State::kConnected)
    return end(ErrorCode::kUnavailable,
               "the connection broke: " + (status.ok() ? "the host ended" : status.error_message()),
               lease_.is_held() && stamp() >= lease_.ends());
  if (unreachable) {
    last_problem_ = status.error_message();
    if (!options_.tries_again) return end(ErrorCode::kUnavailable, "not reached: " + last_problem_);
    return set_timer(next_step_, kRetryEvery, &RemoteSession::attempt);
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED)
    return end(ErrorCode::kProtocol, "the peer speaks another version of the protocol");
  const bool refused = status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
                       status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
  if (refused) return end(ErrorCode::kRejected, "refused: " + status.error_message());
  end(ErrorCode::kProtocol,
      fmt::format("the call failed with gRPC status {}: {}", static_cast<int>(status.error_code()),
                  status.error_message()));
}

void RemoteSession::give_up_connecting() {
  if (state_ != State::kConnecting) return;
  std::string what =
      fmt::format("nobody answered within read_timeout={} s", seconds(options_.read_timeout));
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

void RemoteSession::end(ErrorCode code, const std::string& what, bool is_fenced) {
  // At the end of a lease the call stays: the host would hear of its end at once, and the others
  // might start before the workers here are gone.
  if (call_ && !is_fenced) call_->cut();
  deliver(SessionLost{
      .error = {code, "rendezvous at " + endpoint(options_.host, options_.port) + ": " + what},
      .is_fenced = is_fenced,
      .was_reached = state_ != State::kConnecting});
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
