#include "rendezvous/grpc/service.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "base/alarm.h"
#include "base/log.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/grpc/call_writer.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/connections.h"
#include "rendezvous/grpc/loop_gate.h"
#include "rendezvous/grpc/stream_server.h"
#include "rendezvous/host/connected_nodes.h"
#include "rendezvous/trust/refusals.h"
#include "rendezvous/trust/tls_credentials.h"

namespace ddprun::rendezvous {
namespace {

NodeAuthenticator::TokenOf token_of(const ServiceOptions& options) {
  if (options.jobs) return options.jobs->token;
  return [&options](const std::string& job) {
    return job == options.rdzv_id ? std::optional(options.token) : std::nullopt;
  };
}

}  // namespace

// The loop's knowledge of gRPC's calls; each has a Session of the host. Loop's thread only.
class Service::Calls {
 public:
  Calls(boost::asio::io_context& loop, Host* host, ServiceOptions options);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls();

  void adopt(int fd, Connections::Way way) { intake_.take(fd, way); }
  void admitted(const std::string& peer) { intake_.admitted(peer); }
  void let_go();
  void set_serving(bool is_serving);
  void tidy() { connections_.forget_closed(); }

 private:
  class Call;
  using SharedGate = std::shared_ptr<LoopGate<Calls>>;
  using Nodes = ConnectedNodes<Call, Host::HostedSession>;
  using Node = Nodes::Node;

  bool start_server();
  void serve(int fd, Connections::Way way);
  void called(const std::shared_ptr<Call>& call, std::string job, std::string nonce);
  void answered(const std::shared_ptr<Call>& call, const Result<NodeMessage>& message);
  void cut_overdue();
  void opened(const std::shared_ptr<Call>& call, const std::string& rdzv_id, bool is_proven,
              bool may_grant);
  void on_message(const std::shared_ptr<Call>& call, const Result<NodeMessage>& message);
  void open_session(Node& node, Host& host);
  bool find_job(Node& node, const NodeSpec& spec, const ResumeRequest* resumed);
  void obey(Node& node, const NodeMessage& message);
  bool may_grant() const { return !options_.may_grant || options_.may_grant(); }
  void pass_on(Node& node, const NodeMessage& message);
  void grant_lease(Node& node, const Heartbeat& heartbeat);
  void deliver(Call* call, const HostMessage& message);
  HostMessage too_many() const { return SessionLost{{ErrorCode::kLimit, options_.too_many_calls}}; }
  void refuse(const std::shared_ptr<Call>& call, const Error& refusal);
  void broke(Call* call);
  void tick();
  void schedule_tick();

  Host* const host_;
  const ServiceOptions options_;
  SharedGate gate_;
  boost::asio::steady_timer timer_;
  bool ticking_ = false;
  bool is_serving_ = true;
  NodeAuthenticator authenticator_;
  Alarm proof_alarm_;
  Nodes nodes_;
  Connections connections_;
  Refusals refusals_;
  Intake intake_;
  std::optional<TlsAcceptor> tls_acceptor_;
  std::unique_ptr<StreamServer> server_;
};

// One node's call. Lives until gRPC is done with it and the loop has forgotten it (Node).
class Service::Calls::Call final : public ServerStream {
 public:
  explicit Call(SharedGate gate) : gate_(std::move(gate)) {}

  // ---- any thread ----
  void send(v4::ToNode message) { perform(writer_.send(std::move(message))); }
  // The same, if another message or the end of the call follows at once: gRPC puts both into one
  // packet.
  void send_before_next(v4::ToNode message) {
    perform(writer_.send(std::move(message)), grpc::WriteOptions().set_buffer_hint());
  }
  bool has_room() const { return writer_.has_room(); }
  // Ends the call when everything that was sent is written.
  void close() { perform(writer_.close()); }
  void refuse(const grpc::Status& status) {
    writer_.while_alive([&] { refusal_ = status; });
    close();
  }
  // Breaks the call off.
  void cut() {
    break_off();
    perform(writer_.abandon());
  }
  std::string peer() const { return peer_; }
  // Makes the loop forget the call. The host then counts the node as lost, unless it sent the node
  // its last message. Posted, because it is also called from inside the host (deliver()), where no
  // session may be destroyed.
  void forget() {
    gate_->post([self = shared()](Calls& calls) { calls.nodes_.forget(self.get()); });
  }
  void read_next() {
    writer_.while_alive([this] { start_read(&in_); });
  }

 private:
  // ---- gRPC's threads ----
  // The loop starts the first read, when it has answered.
  void opened() override {
    peer_ = context().peer();
    gate_->post([self = shared(), job = call_metadata(context(), kJobMetadata),
                 nonce = call_metadata(context(), kNonceMetadata)](Calls& calls) {
      calls.called(self, job, nonce);
    });
  }
  // Starts no next read; the loop does when it has handled this message (read_next()). So a node
  // that sends without end is stopped by flow control and does not fill our memory.
  void read(bool ok) override {
    if (!ok) return broken();
    gate_->post([self = shared(), message = decode(in_)](Calls& calls) {
      calls.on_message(self, message);
    });
  }
  void written(bool ok) override { perform(writer_.written(ok)); }
  // Also called if the server shuts down before the loop has heard of this call. It must end here
  // then, because the server's end waits for the end of every call.
  void cancelled() override { perform(writer_.abandon()); }
  void done() override { tell_broken(); }

  std::shared_ptr<Call> shared() { return std::static_pointer_cast<Call>(shared_from_this()); }
  void break_off() {
    writer_.while_alive([this] { cancel(); });
  }
  void broken() {
    tell_broken();
    perform(writer_.abandon());
  }
  void tell_broken() {
    gate_->post([self = shared()](Calls& calls) { calls.broke(self.get()); });
  }
  // The status of a call that was let in is always OK and says nothing. A node knows the reason
  // from its last message; a call that ends without one was broken off. Write-through as in
  // client.cc.
  void perform(CallWriter<v4::ToNode>::Step step,
               grpc::WriteOptions options = grpc::WriteOptions().set_write_through()) {
    if (step.write != nullptr) start_write(*step.write, options);
    if (step.end) finish(refusal_);
    if (step.overflow) break_off();  // the write under way then fails, and the queue with it
  }

  const SharedGate gate_;
  std::string peer_;  // written before the loop hears of the call
  v4::FromNode in_;
  CallWriter<v4::ToNode> writer_;
  grpc::Status refusal_;  // OK: let in
};

Service::Calls::Calls(boost::asio::io_context& loop, Host* host, ServiceOptions options)
    : host_(host),
      options_(std::move(options)),
      gate_(std::make_shared<LoopGate<Calls>>(loop, *this)),
      timer_(loop),
      authenticator_({.token_of = token_of(options_),
                      .most = options_.max_unauthenticated,
                      .proof_limit = options_.proof_limit}),
      proof_alarm_(loop, [this] { cut_overdue(); }),
      nodes_(loop, options_.resumes),
      connections_(options_.max_unauthenticated),
      intake_(
          loop,
          {{.waiting = options_.max_unauthenticated}, options_.tls.is_set() && !options_.tls_mixed},
          connections_, refusals_, [this](int fd, Connections::Way way) { serve(fd, way); }) {}

// Once the gate is closed no handler runs any more. Then the last messages are written, while gRPC
// still serves. The host hears last that the nodes are gone: when nodes_ is destroyed.
Service::Calls::~Calls() {
  // While the gate is open, what posts to it keeps each call alive.
  for (void* const call : authenticator_.overdue(NodeAuthenticator::Time::max()))
    static_cast<Call*>(call)->cut();
  gate_->close();
  nodes_.for_each([](Node& node) { node.call->close(); });
  if (server_) server_->shut_down(kFlushLimit);
}

// A server that listens on no port: it gets its connections from adopt().
bool Service::Calls::start_server() {
  grpc::ServerBuilder builder;
  set_up_server(builder);
  if (options_.tls.is_set()) tls_acceptor_.emplace(builder, options_.tls, kIdleConnectionMs);
  if (options_.answers_health) grpc::EnableDefaultHealthCheckService(true);
  if (options_.more) options_.more(builder);
  server_ = std::make_unique<StreamServer>(builder, options_.expected_nodes,
                                           [this] { return std::make_shared<Call>(gate_); });
  if (server_->server() == nullptr) server_.reset();
  if (server_) server_->set_serving(is_serving_);
  return server_ != nullptr;
}

void Service::Calls::serve(int fd, Connections::Way way) {
  if (!server_ && !start_server()) {
    refusals_.warn("cannot serve a connection: gRPC could not be started");
    ::close(fd);
    return;
  }
  if (way == Connections::Way::kTls) return tls_acceptor_->adopt(fd);
  grpc::AddInsecureChannelFromFd(server_->server(), fd);
}

void Service::Calls::called(const std::shared_ptr<Call>& call, std::string job, std::string nonce) {
  const auto challenge = authenticator_.called(call.get(), std::move(job), std::move(nonce),
                                               make_nonce(), std::chrono::steady_clock::now());
  cut_overdue();
  if (!challenge) return refuse(call, challenge.error());
  call->send(encode(*challenge));
  call->read_next();
}

void Service::Calls::answered(const std::shared_ptr<Call>& call,
                              const Result<NodeMessage>& message) {
  const Proof* const proof = message ? std::get_if<Proof>(&*message) : nullptr;
  const auto in = authenticator_.answered(call.get(), proof != nullptr ? *proof : Proof{},
                                          connections_.is_clear(call->peer()));
  if (!in) return refuse(call, in.error());
  // Asked once, so that the answer waits for no lease that does not come.
  const bool grants = may_grant();
  if (grants) {
    call->send_before_next(encode(in->answer));
  } else {
    call->send(encode(in->answer));
  }
  opened(call, in->job, in->is_proven, grants);
  call->read_next();
}

void Service::Calls::cut_overdue() {
  for (void* const overdue : authenticator_.overdue(std::chrono::steady_clock::now())) {
    // It lives: broke() has not been posted yet, or what was posted holds it.
    auto* const call = static_cast<Call*>(overdue);
    refusals_.refused(connections_.observed(call->peer()).address,
                      "it did not prove in time that it knows the job's token");
    call->cut();
  }
  proof_alarm_.set(authenticator_.look_again_at());
}

void Service::Calls::refuse(const std::shared_ptr<Call>& call, const Error& refusal) {
  refusals_.refused(connections_.observed(call->peer()).address, reason_to_log(refusal));
  call->refuse(Refusals::status_of(refusal));
}

void Service::Calls::broke(Call* call) {
  authenticator_.forget(call);
  nodes_.broke(call);
}

void Service::Calls::opened(const std::shared_ptr<Call>& call, const std::string& rdzv_id,
                            bool is_proven, bool may_grant) {
  const std::string elsewhere = options_.turns_away ? options_.turns_away() : "";
  if (!elsewhere.empty()) return call->refuse({grpc::StatusCode::UNAVAILABLE, elsewhere});
  intake_.admitted(call->peer());
  // A call says later who it is. Each may be a node that comes back: its call of before still
  // counts.
  if (nodes_.size() >= 2 * options_.max_calls + 1) return deliver(call.get(), too_many());
  PeerInfo observed = connections_.observed(call->peer());
  observed.is_proven = is_proven;
  Node& node = nodes_.add(call, rdzv_id, observed);
  if (host_ != nullptr) open_session(node, *host_);
  if (may_grant) grant_lease(node, {});  // which tells the node that it was let in
  schedule_tick();
}

void Service::Calls::open_session(Node& node, Host& host) {
  node.session = host.open_direct_session(
      [this, route = node.route](const HostMessage& message) { deliver(*route, message); },
      node.observed);
}

// False if the node was refused.
bool Service::Calls::find_job(Node& node, const NodeSpec& spec, const ResumeRequest* resumed) {
  const auto found = options_.jobs->host(node.rdzv_id, spec, resumed ? resumed->round : 0);
  Host* const* const host = std::get_if<Host*>(&found);
  if (host == nullptr) deliver(node.call.get(), std::get<HostMessage>(found));
  if (host != nullptr) open_session(node, **host);
  return host != nullptr;
}

// Grants no lease while much waits to be written. Leases must not fill the queue of a node that
// does not read. Its lease then ends, as it would without a network.
void Service::Calls::grant_lease(Node& node, const Heartbeat& heartbeat) {
  if (!node.call->has_room()) return;
  const int here = std::max(options_.expected_nodes, static_cast<int>(nodes_.size()));
  const Lease lease = lease_for(options_.keep_alive, std::min(here, options_.most_nodes));
  node.silence.granted(options_.keep_alive, lease);
  const auto awaits = node.session ? node.session->wait_status() : std::nullopt;
  const bool returns = options_.jobs.has_value();
  node.call->send(encode(LeaseGrant{.stamp = heartbeat.stamp,
                                    .lease = lease,
                                    .wait_status = awaits,
                                    .may_return = options_.resumes,
                                    .host_returns = returns,
                                    .takes_evidence = true,
                                    .takes_replicas = true,
                                    .takes_steps = true,
                                    .takes_notices = true}));
}

void Service::Calls::on_message(const std::shared_ptr<Call>& call,
                                const Result<NodeMessage>& message) {
  if (authenticator_.awaits(call.get())) return answered(call, message);
  Node* const node = nodes_.find(call.get());
  if (node == nullptr) return;
  if (!message) {
    log::warning("rendezvous: a node's message makes no sense: " + message.error().message());
    return deliver(call.get(), SessionLost{message.error()});
  }
  node->silence.broken();
  if (std::holds_alternative<Gone>(*message)) {
    nodes_.forget(call.get());
    return call->close();  // the end of the call is the receipt that the node waits for
  }
  obey(*node, *message);
  call->read_next();
}

void Service::Calls::obey(Node& node, const NodeMessage& message) {
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    if (may_grant()) grant_lease(node, *heartbeat);
    return;
  }
  const auto* const first = std::get_if<NodeSpec>(&message);
  const auto* const resumed = std::get_if<ResumeRequest>(&message);
  const NodeSpec* const named = resumed != nullptr ? &resumed->spec : first;
  if (nodes_.is_overtaken(node, named, resumed)) return node.call->cut();
  const bool is_new = named != nullptr && node.spec.node_id.empty();
  const bool has_place = resumed != nullptr && nodes_.comes_back(node, *resumed);
  // One that came back counts itself.
  if (is_new && !has_place && nodes_.are_named_as_many_as(options_.max_calls + (resumed ? 1 : 0)))
    return deliver(node.call.get(), too_many());
  // Without a seat there is nothing else to say.
  if (!node.session && (named == nullptr || !find_job(node, *named, resumed))) return;
  pass_on(node, message);
}

// To the session of its job.
void Service::Calls::pass_on(Node& node, const NodeMessage& message) {
  Session& session = *node.session;
  if (const auto* resumed = std::get_if<ResumeRequest>(&message)) return session.resume(*resumed);
  if (const auto* first = std::get_if<NodeSpec>(&message)) {
    nodes_.joins(node, *first);
    session.join(*first);
  }
  if (const auto* failed = std::get_if<WorkerFailed>(&message))
    session.report_failure(failed->round, failed->failure);
  if (const auto* done = std::get_if<NodeSucceeded>(&message)) session.report_success(done->round);
  if (const auto* leave = std::get_if<Leave>(&message)) session.leave(leave->reason);
  if (const auto* suspicion = std::get_if<Suspicion>(&message)) session.suspect(suspicion->round);
  if (const auto* evidence = std::get_if<Evidence>(&message))
    session.give_evidence(evidence->round, evidence->inquiry, evidence->ranks);
  if (const auto* report = std::get_if<ReplicaReport>(&message)) session.report_replicas(*report);
  if (const auto* report = std::get_if<StepReport>(&message)) session.report_steps(*report);
  if (const auto* notice = std::get_if<Notice>(&message)) session.give_notice(*notice);
  if (const auto* answer = std::get_if<StepAnswer>(&message)) session.answer_step(*answer);
}

// May run inside a function of the host, so it only sends. A node that got its last message is
// forgotten later, by a post. `call` is valid: its Node holds it. Without a Node there is no
// session for which the host could have a message.
void Service::Calls::deliver(Call* call, const HostMessage& message) {
  // As leases: they must not fill the queue of a node that does not read.
  const bool may_be_lost = std::holds_alternative<Look>(message) ||
                           std::holds_alternative<StandstillVerdict>(message) ||
                           std::holds_alternative<ReplicaQuestion>(message) ||
                           std::holds_alternative<ReplicaVerdict>(message) ||
                           std::holds_alternative<StragglerVerdict>(message);
  if (may_be_lost && !call->has_room()) return;
  call->send(encode(message));
  if (!is_last(message)) return;
  call->close();
  call->forget();
}

void Service::Calls::let_go() {
  for (const auto& call : nodes_.calls([](Node&) { return true; })) {
    call->close();
    nodes_.forget(call.get());
  }
}

void Service::Calls::set_serving(bool is_serving) {
  is_serving_ = is_serving;
  if (server_) server_->set_serving(is_serving);
}

// Without nodes no timer runs, so an idle host does not wake up.
void Service::Calls::schedule_tick() {
  if (ticking_ || nodes_.size() == 0) return;
  ticking_ = true;
  timer_.expires_after(look_every(options_.keep_alive));
  timer_.async_wait([gate = gate_](const boost::system::error_code& error) {
    if (!error && gate->owner() != nullptr) gate->owner()->tick();
  });
}

void Service::Calls::tick() {
  ticking_ = false;
  for (const auto& call : nodes_.calls([](Node& node) { return node.silence.looked(); })) {
    const Node& node = *nodes_.find(call.get());
    if (node.session) node.session->went_silent(node.silence.length());
    call->cut();
    nodes_.forget(call.get());
  }
  schedule_tick();
}

Service::Service(boost::asio::io_context& loop, Host& host, ServiceOptions options)
    : calls_(std::make_unique<Calls>(loop, &host, std::move(options))) {}

Service::Service(boost::asio::io_context& loop, ServiceOptions options)
    : calls_(std::make_unique<Calls>(loop, nullptr, std::move(options))) {}

Service::~Service() = default;

void Service::adopt(int fd) { calls_->adopt(fd, Connections::Way::kClear); }
void Service::adopt_tls(int fd) { calls_->adopt(fd, Connections::Way::kTls); }
void Service::let_go() { calls_->let_go(); }
void Service::set_serving(bool is_serving) { calls_->set_serving(is_serving); }
void Service::admitted(const std::string& peer) { calls_->admitted(peer); }
void Service::tidy() { calls_->tidy(); }

}  // namespace ddprun::rendezvous
