#include "rendezvous/client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/call_writer.h"
#include "rendezvous/codec.h"
#include "rendezvous/loop_gate.h"

namespace ddprun::rendezvous {
namespace {

// The pause between two attempts to reach a host that is not up yet.
constexpr std::chrono::milliseconds kRetryEvery{100};
// gRPC's pause between two connects grows from the first value to the second. With its defaults, 1
// s and 120 s (gRPC doc/connection-backoff.md), a node would find a late host much too late.
constexpr int kFirstBackoffMs = 50;
constexpr int kMaxBackoffMs = 500;
// After this time a connect gives up and a new one starts: the first packets to a host that is just
// coming up are lost, and gRPC's default of 20 s is a third of read_timeout.
constexpr int kConnectLimitMs = 3000;

// How long we wait for the end of a cancelled call, which normally takes microseconds. If it takes
// longer, the call's memory is given up (keep_for_ever()), so that the agent is not held up.
constexpr std::chrono::milliseconds kCancelLimit{50};

double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

std::string endpoint(const std::string& host, std::uint16_t port) {
  return is_v6(host) ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
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

// A channel to one numeric address. gRPC is given no name: its own resolver would ask a second time,
// and might get another answer than the agent.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address, std::uint16_t port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectLimitMs);
  // A connection of our own: gRPC would share one between all sessions of a process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // We try again ourselves, and a message must not reach the host twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // http_proxy is for the web, not for peers
  arguments.SetMaxReceiveMessageSize(kMaxDownBytes);
  arguments.SetMaxSendMessageSize(kMaxUpBytes);
  // The scheme says that what follows is no name (gRPC Name Resolution, "ipv4" and "ipv6").
  const std::string target = (is_v6(address) ? "ipv6:" : "ipv4:") + endpoint(address, port);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
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

 private:
  class Call;
  using SharedGate = std::shared_ptr<LoopGate<RemoteSession>>;
  enum class State { kConnecting, kConnected, kOver };

  void say(const NodeMessage& message);
  void attempt();
  void connected();
  void heard(const std::shared_ptr<Call>& call, const Result<std::optional<HostMessage>>& message);
  void finished(const std::shared_ptr<Call>& call, const grpc::Status& status);
  void tick();
  void set_timer(boost::asio::steady_timer& timer, std::chrono::milliseconds after,
                 void (RemoteSession::*act)());
  void give_up_connecting();
  void end(ErrorCode code, const std::string& what);
  void deliver(const HostMessage& message);
  static void keep_for_ever(std::shared_ptr<Call> call);

  RemoteOptions options_;
  const MessageHandler handler_;
  SharedGate gate_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer next_step_;  // retries while connecting, beats once connected
  State state_ = State::kConnecting;
  bool left_ = false;
  std::vector<v1::FromNode> unsent_;  // said before we were connected
  std::string last_problem_;
  int quiet_ticks_ = 0;
  std::vector<std::unique_ptr<v1::Rendezvous::Stub>> stubs_;  // one for each address of the host
  std::size_t attempts_ = 0;
  std::shared_ptr<Call> call_;
};

// One gRPC call: an attempt to connect, which becomes the session if the host lets us in. Lives
// until gRPC is done with it (self_) and the session has dropped it (call_).
class RemoteSession::Call final : public grpc::ClientBidiReactor<v1::FromNode, v1::ToNode>,
                                  public std::enable_shared_from_this<Call> {
 public:
  explicit Call(SharedGate gate) : gate_(std::move(gate)) {}

  // ---- loop's thread ----
  void start(v1::Rendezvous::Stub& stub, const RemoteOptions& options) {
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
  void send(v1::FromNode message) { perform(writer_.send(std::move(message))); }
  bool idle() const { return writer_.idle(); }
  // No message follows those that were sent. The host ends the call when it has read a Leave.
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
  void perform(CallWriter<v1::FromNode>::Step step) {
    if (step.write != nullptr) StartWrite(step.write, grpc::WriteOptions().set_write_through());
    if (step.end) RemoveHold();
    if (step.overflow) context_.TryCancel();  // the write under way then fails, and the queue too
  }

  const SharedGate gate_;
  grpc::ClientContext context_;
  v1::ToNode in_;
  CallWriter<v1::FromNode> writer_;
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
      next_step_(loop) {
  if (const auto error = check(options_)) {
    gate_->post([error](RemoteSession& session) {
      session.state_ = State::kOver;
      session.deliver(SessionLost{*error});
    });
    return;
  }
  if (options_.addresses.empty()) options_.addresses = {options_.host};
  for (const std::string& address : options_.addresses)
    stubs_.push_back(v1::Rendezvous::NewStub(make_channel(address, options_.port)));
  set_timer(deadline_, options_.read_timeout, &RemoteSession::give_up_connecting);
  attempt();
}

RemoteSession::~RemoteSession() {
  gate_->close();
  if (!call_) return;
  // After leave() a cut could destroy the Leave before a slow host has read it.
  if (!left_) call_->cut();
  if (call_->wait_done(kCancelLimit)) return;
  keep_for_ever(std::move(call_));
}

// gRPC may still use the call. So it is never freed, not even when the process exits: hence `new`.
void RemoteSession::keep_for_ever(std::shared_ptr<Call> call) {
  static auto* const kept = new std::vector<std::shared_ptr<Call>>;
  kept->push_back(std::move(call));
}

// Blocks until the host has read the Leave, at most for leave_limit. Otherwise the end of this
// process, or of the call, could overtake the Leave. The host's receipt is that it ends the call. A
// session that is not connected has nobody to tell.
void RemoteSession::leave(const Failure& reason) {
  const State before = std::exchange(state_, State::kOver);
  deadline_.cancel();
  next_step_.cancel();
  if (before != State::kConnected) return;
  left_ = true;
  call_->send(encode(Leave{reason}));
  call_->close();
  call_->wait_done(options_.leave_limit);
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
  for (v1::FromNode& message : std::exchange(unsent_, {})) call_->send(std::move(message));
  set_timer(next_step_, options_.beat_every, &RemoteSession::tick);
}

void RemoteSession::heard(const std::shared_ptr<Call>& call,
                          const Result<std::optional<HostMessage>>& message) {
  if (call != call_ || state_ == State::kOver) return;
  quiet_ticks_ = 0;
  if (!message) return end(ErrorCode::kProtocol, message.error().message());
  if (state_ == State::kConnecting) connected();
  if (*message) deliver(**message);
}

void RemoteSession::finished(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  if (call != call_ || state_ == State::kOver) return;
  // gRPC's status for a peer that cannot be reached. Any other status is an answer of the peer, and
  // another attempt would get the same one.
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (state_ == State::kConnected)
    return end(
        ErrorCode::kUnavailable,
        "the connection broke: " + (status.ok() ? "the host ended" : status.error_message()));
  if (unreachable) {
    last_problem_ = status.error_message();
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

void RemoteSession::tick() {
  if (++quiet_ticks_ > options_.silence_ticks)
    return end(ErrorCode::kUnavailable,
               fmt::format("the host was silent for {} s",
                           seconds(options_.beat_every * options_.silence_ticks)));
  // If a message waits, it does what a beat does, and beats must not fill the queue.
  if (call_->idle()) call_->send(encode(Beat{}));
  set_timer(next_step_, options_.beat_every, &RemoteSession::tick);
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

void RemoteSession::end(ErrorCode code, const std::string& what) {
  if (call_) call_->cut();
  deliver(
      SessionLost{{code, "rendezvous at " + endpoint(options_.host, options_.port) + ": " + what}});
}

// The handler may destroy the session. So it is called as a copy, and nothing is touched after it.
void RemoteSession::deliver(const HostMessage& message) {
  if (is_last(message)) {
    state_ = State::kOver;
    deadline_.cancel();
    next_step_.cancel();
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
