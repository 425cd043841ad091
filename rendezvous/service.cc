#include "rendezvous/service.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <climits>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "proto/log.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/call_writer.h"
#include "rendezvous/channel.h"
#include "rendezvous/codec.h"
#include "rendezvous/connections.h"
#include "rendezvous/loop_gate.h"
#include "rendezvous/rate_limiter.h"
#include "rendezvous/stream_server.h"

namespace ddprun::rendezvous {
namespace {

// gRPC closes a connection that carries no call for this long. Otherwise somebody who connects and
// says nothing would hold a descriptor.
constexpr int kIdleConnectionMs = 10'000;
// A node has one call. It has a second one only for the moment in which the first ends.
constexpr int kCallsPerConnection = 4;

// Takes the same time wherever the texts differ. Otherwise the time of a refusal would tell how
// many letters are right, and a token could be guessed letter by letter.
bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0U : 1U;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const char letter = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(letter) ^ static_cast<unsigned char>(expected[i]);
  }
  return difference == 0;
}

std::string_view metadata(const grpc::ServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

// The job's id is compared first. If the user set no token, the id is also the token; then a node
// of another job has a wrong token, too, but must be told that its id is wrong. A caller without
// the token is not told our id: it may be the token.
grpc::Status check(const grpc::ServerContext& context, const ServiceOptions& options) {
  const bool known = options.token.empty() ||
                     equal_in_constant_time(metadata(context, kTokenMetadata), options.token);
  const std::string id(metadata(context, kJobMetadata));
  if (id != options.rdzv_id)
    return {grpc::StatusCode::FAILED_PRECONDITION,
            known ? "it serves the job with rdzv_id=" + options.rdzv_id + ", not " + id
                  : "it serves another job than the one with rdzv_id=" + id};
  if (!known) return {grpc::StatusCode::UNAUTHENTICATED, "the job's token is missing or wrong"};
  return grpc::Status::OK;
}

// For our log. Leaves out the id that the caller sent: a stranger must not write into our log.
std::string reason_to_log(const grpc::Status& refusal) {
  return refusal.error_code() == grpc::StatusCode::FAILED_PRECONDITION
             ? "it asks for another job (rdzv_id)"
             : refusal.error_message();
}

}  // namespace

// What the loop knows of gRPC's calls; each has a Session of the host. Loop's thread only.
class Service::Calls {
 public:
  Calls(boost::asio::io_context& loop, Host& host, ServiceOptions options);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls();

  void adopt(int fd);

 private:
  class Call;
  using SharedGate = std::shared_ptr<LoopGate<Calls>>;
  struct Node {
    std::shared_ptr<Call> call;
    std::unique_ptr<Host::HostedSession> session;
    Silence silence;
  };

  bool start_server();
  void opened(const std::shared_ptr<Call>& call, const std::string& peer);
  void heard(const std::shared_ptr<Call>& call, const Result<NodeMessage>& message);
  void obey(Node& node, const NodeMessage& message);
  void grant_lease(Node& node, const Beat& beat);
  void deliver(Call* call, const HostMessage& message);
  void refused(const std::string& peer, const std::string& reason);
  void tick();
  void schedule_tick();

  Host& host_;
  const ServiceOptions options_;
  SharedGate gate_;
  boost::asio::steady_timer timer_;
  bool ticking_ = false;
  std::map<Call*, Node> nodes_;
  Connections connections_;
  RateLimiter refusal_warnings_{kRefusalWarningEvery};
  std::unique_ptr<StreamServer> server_;
};

// One node's call. Lives until gRPC is done with it and the loop has forgotten it (Node).
class Service::Calls::Call final : public ServerStream {
 public:
  // `options` must outlive the server, which makes calls.
  Call(SharedGate gate, const ServiceOptions& options)
      : gate_(std::move(gate)), options_(options) {}

  // ---- any thread ----
  void send(v2::ToNode message) { perform(writer_.send(std::move(message))); }
  bool has_room() const { return writer_.has_room(); }
  // Ends the call when everything that was sent is written.
  void close() { perform(writer_.close()); }
  // Breaks the call off.
  void cut() {
    break_off();
    perform(writer_.abandon());
  }
  // Makes the loop forget the call. The host then counts the node as lost, unless it sent the node
  // its last message. Posted, because it is also called from inside the host (deliver()), where no
  // session may be destroyed.
  void forget() {
    gate_->post([self = shared()](Calls& calls) { calls.nodes_.erase(self.get()); });
  }
  void read_next() {
    writer_.while_alive([this] { start_read(&in_); });
  }

 private:
  // ---- gRPC's threads ----
  // The loop hears of the call before it hears the call's messages: its post comes before the first
  // read.
  void opened() override {
    if (const grpc::Status status = check(context(), options_); !status.ok()) return refuse(status);
    gate_->post(
        [self = shared(), peer = context().peer()](Calls& calls) { calls.opened(self, peer); });
    start_read(&in_);
  }
  // Starts no next read; the loop does when it has handled this message (read_next()). So a node
  // that sends without end is stopped by flow control and does not fill our memory.
  void read(bool ok) override {
    if (!ok) return broken();
    gate_->post(
        [self = shared(), message = decode(in_)](Calls& calls) { calls.heard(self, message); });
  }
  void written(bool ok) override { perform(writer_.written(ok)); }
  // Also called if the server shuts down before the loop has heard of this call. It must end here
  // then, because the server's end waits for the end of every call.
  void cancelled() override { perform(writer_.abandon()); }
  void done() override { forget(); }

  std::shared_ptr<Call> shared() { return std::static_pointer_cast<Call>(shared_from_this()); }
  void refuse(const grpc::Status& status) {
    gate_->post([peer = context().peer(), reason = reason_to_log(status)](Calls& calls) {
      calls.refused(peer, reason);
    });
    refusal_ = status;
    perform(writer_.close());
  }
  void break_off() {
    writer_.while_alive([this] { cancel(); });
  }
  void broken() {
    forget();
    perform(writer_.abandon());
  }
  // The status of a call that was let in is always OK and says nothing. A node knows the reason from
  // its last message; a call that ends without one was broken off. Write-through as in client.cc.
  void perform(CallWriter<v2::ToNode>::Step step) {
    if (step.write != nullptr) start_write(*step.write, grpc::WriteOptions().set_write_through());
    if (step.end) finish(refusal_);
    if (step.overflow) break_off();  // the write under way then fails, and the queue with it
  }

  const SharedGate gate_;
  const ServiceOptions& options_;
  v2::FromNode in_;
  CallWriter<v2::ToNode> writer_;
  grpc::Status refusal_;  // OK: let in
};

Service::Calls::Calls(boost::asio::io_context& loop, Host& host, ServiceOptions options)
    : host_(host),
      options_(std::move(options)),
      gate_(std::make_shared<LoopGate<Calls>>(loop, *this)),
      timer_(loop),
      connections_(options_.max_strangers) {}

// No handler may run any more. Then the last messages are written, while gRPC still serves, and the
// host hears last that the nodes are gone: when nodes_ is destroyed.
Service::Calls::~Calls() {
  gate_->close();
  for (auto& [call, node] : nodes_) call->close();
  if (server_) server_->shut_down(kFlushLimit);
}

// A server that listens on no port: it gets its connections from adopt().
bool Service::Calls::start_server() {
  set_up_grpc();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxUpBytes);
  builder.SetMaxSendMessageSize(kMaxDownBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  // As in channel.cc.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  server_ = std::make_unique<StreamServer>(
      builder, options_.expected_nodes, [this] { return std::make_shared<Call>(gate_, options_); });
  if (server_->server() == nullptr) server_.reset();
  return server_ != nullptr;
}

void Service::Calls::adopt(int fd) {
  if (!server_ && !start_server()) {
    log::error("rendezvous: gRPC could not be started; remote nodes cannot join");
    ::close(fd);
    return;
  }
  const int flags = ::fcntl(fd, F_GETFL);
  const int on = 1;
  // gRPC sets these on the connections that it accepts, but not on one that is handed to it. A
  // blocking socket would block gRPC's threads.
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0) {
    log::error("rendezvous: cannot serve a connection: " + std::generic_category().message(errno));
    ::close(fd);
    return;
  }
  // As long as little is sent, the kernel tries a lost packet again six times at equal pauses, and
  // does not double each (the kernel's Documentation/networking/tcp-thin). What the node sends is
  // tried again at doubled pauses: a beat that is lost in a blip of 2 s comes after some 3 s.
  ::setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
  // Before gRPC gets the descriptor: afterwards gRPC may close it at any time.
  connections_.add(fd);
  grpc::AddInsecureChannelFromFd(server_->server(), fd);
}

void Service::Calls::opened(const std::shared_ptr<Call>& call, const std::string& peer) {
  Call* const key = call.get();
  connections_.let_in(peer);
  if (nodes_.size() >= kMaxCalls) {
    call->send(encode(SessionLost{{ErrorCode::kLimit, "rendezvous: too many nodes"}}));
    return call->close();
  }
  auto session =
      host_.open_direct_session([this, key](const HostMessage& message) { deliver(key, message); },
                                connections_.observed(peer));
  Node& node = nodes_.emplace(key, Node{call, std::move(session), {}}).first->second;
  grant_lease(node, {});  // which tells the node that it was let in
  schedule_tick();
}

// Not while much waits to be written: leases must not fill the queue of a node that does not read.
// Its lease then ends, as it would without a network.
void Service::Calls::grant_lease(Node& node, const Beat& beat) {
  if (!node.call->has_room()) return;
  const int nodes = std::max(options_.expected_nodes, static_cast<int>(nodes_.size()));
  const Lease lease = lease_for(options_.keep_alive, nodes);
  node.silence.granted(options_.keep_alive, lease);
  node.call->send(encode(LeaseGrant{beat.stamp, lease, node.session->gathering()}));
}

void Service::Calls::heard(const std::shared_ptr<Call>& call, const Result<NodeMessage>& message) {
  const auto found = nodes_.find(call.get());
  if (found == nodes_.end()) return;
  if (!message) {
    log::warning("rendezvous: a node's message makes no sense: " + message.error().message());
    return deliver(call.get(), SessionLost{message.error()});
  }
  found->second.silence.heard();
  if (std::holds_alternative<Gone>(*message)) {
    nodes_.erase(found);
    return call->close();  // the end of the call is the receipt that the node waits for
  }
  obey(found->second, *message);
  call->read_next();
}

void Service::Calls::obey(Node& node, const NodeMessage& message) {
  Session& session = *node.session;
  if (const auto* spec = std::get_if<NodeSpec>(&message)) session.join(*spec);
  if (const auto* failed = std::get_if<WorkerFailed>(&message))
    session.report_failure(failed->round, failed->failure);
  if (const auto* done = std::get_if<NodeSucceeded>(&message)) session.report_success(done->round);
  if (const auto* leave = std::get_if<Leave>(&message)) session.leave(leave->reason);
  if (const auto* beat = std::get_if<Beat>(&message)) grant_lease(node, *beat);
}

// May run inside a function of the host, so it only sends. A node that got its last message is
// forgotten later, by a post. `call` is valid: its Node holds it, and without a Node there is no
// session for which the host could have a message.
void Service::Calls::deliver(Call* call, const HostMessage& message) {
  call->send(encode(message));
  const bool last =
      std::holds_alternative<JobEnded>(message) || std::holds_alternative<SessionLost>(message);
  if (!last) return;
  call->close();
  call->forget();
}

void Service::Calls::refused(const std::string& peer, const std::string& reason) {
  const auto unsaid = refusal_warnings_.happened(std::chrono::steady_clock::now());
  if (!unsaid) return;
  const std::string more = *unsaid == 0 ? "" : " (" + std::to_string(*unsaid) + " more before it)";
  log::warning("rendezvous: refused a connection from " + connections_.observed(peer).address +
               ": " + reason + more);
}

// Without nodes no timer runs, so an idle host does not wake up.
void Service::Calls::schedule_tick() {
  if (ticking_ || nodes_.empty()) return;
  ticking_ = true;
  timer_.expires_after(look_every(options_.keep_alive));
  timer_.async_wait([gate = gate_](const boost::system::error_code& error) {
    if (!error && gate->owner() != nullptr) gate->owner()->tick();
  });
}

void Service::Calls::tick() {
  ticking_ = false;
  for (auto next = nodes_.begin(); next != nodes_.end();) {
    auto& [call, node] = *next;
    if (!node.silence.looked()) {
      ++next;
      continue;
    }
    node.session->went_silent(node.silence.length());
    // The host tells the others of this loss through deliver(), which erases no node.
    call->cut();
    next = nodes_.erase(next);
  }
  schedule_tick();
}

Service::Service(boost::asio::io_context& loop, Host& host, ServiceOptions options)
    : calls_(std::make_unique<Calls>(loop, host, std::move(options))) {}

Service::~Service() = default;

void Service::adopt(int fd) { calls_->adopt(fd); }

}  // namespace ddprun::rendezvous
