#include "rendezvous/election/etcd_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <utility>

#include "rendezvous/election/etcd_calls.h"
#include "rendezvous/grpc/channel.h"
#include "rendezvous/grpc/loop_gate.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kMaxAnswerBytes = 1 << 20;  // kRecordsAtOnce records
constexpr int kReconnectMs = 200;
// After this time a connect gives up and a new one starts. The first packets to a host that was cut
// off are sent again more and more rarely.
constexpr int kConnectLimitMs = 2'000;
// etcd cuts clients that ping more often than every 5 s (its --grpc-keepalive-min-time).
constexpr int kPingEveryMs = 6'000;
constexpr int kPingLimitMs = 1'500;
// The pause before a watch that broke is told: it may break again at once.
constexpr milliseconds kWatchPause{300};
constexpr milliseconds kLastCallLimit{500};
constexpr milliseconds kCancelLimit{50};

std::shared_ptr<grpc::ChannelCredentials> credentials(const EtcdOptions& options) {
  if (!options.with_tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = options.ca,
                               .pem_private_key = options.key,
                               .pem_cert_chain = options.cert});
}

// gRPC is given no name, as in channel.cc.
std::shared_ptr<grpc::Channel> connect(const EtcdMember& member, const EtcdOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectLimitMs);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingLimitMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  // The certificate bears the member's name, and we connect to an address.
  boost::system::error_code no_address;
  boost::asio::ip::make_address(member.host, no_address);
  if (options.with_tls && no_address) arguments.SetSslTargetNameOverride(member.host);
  const std::string scheme =
      member.addresses.front().find(':') == std::string::npos ? "ipv4" : "ipv6";
  std::vector<std::string> targets;
  for (const std::string& address : member.addresses) {
    const bool is_v6 = address.find(':') != std::string::npos;
    if (is_v6 == (scheme == "ipv6")) targets.push_back(endpoint(address, member.port));
  }
  return grpc::CreateCustomChannel(fmt::format("{}:{}", scheme, fmt::join(targets, ",")),
                                   credentials(options), arguments);
}

// A channel is never freed. gRPC 1.51 ends its threads with the last channel, and waits for them. A
// call's last owner may be on one of these threads. There it would wait for itself. A process has
// one client.
std::shared_ptr<grpc::Channel> keep_for_ever(std::shared_ptr<grpc::Channel> channel) {
  static auto* const kept = new std::vector<std::shared_ptr<grpc::Channel>>;
  return kept->emplace_back(std::move(channel));
}

// Returns whether another member may answer, or this one later.
bool is_unavailable(const grpc::Status& status) {
  // The last two are gRPC's for a connection that broke in the midst of a call.
  constexpr std::array kCodes = {grpc::StatusCode::UNAVAILABLE,
                                 grpc::StatusCode::DEADLINE_EXCEEDED,
                                 grpc::StatusCode::RESOURCE_EXHAUSTED,
                                 grpc::StatusCode::ABORTED,
                                 grpc::StatusCode::CANCELLED,
                                 grpc::StatusCode::INTERNAL,
                                 grpc::StatusCode::UNKNOWN};
  return std::find(kCodes.begin(), kCodes.end(), status.error_code()) != kCodes.end();
}

// The token is unknown, or older than the last change of etcd's users.
bool wants_new_token(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
          status.error_message().find("auth: revision") != std::string::npos);
}

ErrorCode code_of(const grpc::Status& status) {
  if (is_unavailable(status)) return ErrorCode::kUnavailable;
  return status.error_code() == grpc::StatusCode::NOT_FOUND ? ErrorCode::kNotFound
                                                            : ErrorCode::kRejected;
}

}  // namespace

std::string members_text(const std::vector<EtcdMember>& members) {
  std::vector<std::string> texts;
  texts.reserve(members.size());
  for (const EtcdMember& member : members) texts.push_back(endpoint(member.host, member.port));
  return fmt::format("{}", fmt::join(texts, ","));
}

// Loop's thread only.
class EtcdClient::Calls {
 public:
  Calls(boost::asio::io_context& loop, EtcdOptions options);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls();

  // A question on its way through the members.
  template <typename Request, typename Response>
  struct PendingCall {
    Request request;
    Answer<Response> answer;
    bool is_last = false;  // waited for at the end
    std::size_t tries = 0;
    std::size_t member = 0;  // who was asked last
    bool had_new_token = false;
  };
  template <typename Request, typename Response>
  using SharedPendingCall = std::shared_ptr<PendingCall<Request, Response>>;

  template <typename Response, typename Request>
  void ask(Request request, Answer<Response> answer, bool is_last = false) {
    auto asked = std::make_shared<PendingCall<Request, Response>>();
    asked->request = std::move(request);
    asked->answer = std::move(answer);
    asked->is_last = is_last;
    ask_with_token<Request, Response>(asked);
  }
  void watch(const std::string& key, std::int64_t from_revision, Watcher watcher);
  void stop_watching();

 private:
  using SharedGate = std::shared_ptr<LoopGate<Calls>>;
  struct UnderWay {
    std::shared_ptr<EtcdCall> call;
    bool is_last = false;
  };

  template <typename Request, typename Response>
  void ask_with_token(const SharedPendingCall<Request, Response>& asked);
  template <typename Request, typename Response>
  void try_member(const SharedPendingCall<Request, Response>& asked);
  template <typename Request, typename Response>
  void answered(const SharedPendingCall<Request, Response>& asked, const Response& response,
                const grpc::Status& status);
  void authenticate();
  void authenticated(const Result<v3::AuthenticateResponse>& answer);
  void next_member();
  void watch_fired(const EtcdCall* call, bool is_changed);
  std::string said(const grpc::Status& status, std::size_t asked) const;

  const EtcdOptions options_;
  SharedGate gate_;
  std::vector<EtcdStubs> members_;
  std::size_t current_ = 0;  // of members_: who is asked
  std::string token_;
  bool is_authenticating_ = false;
  std::deque<std::function<void(const Error*)>> wait_for_token_;
  std::vector<UnderWay> under_way_;
  std::shared_ptr<WatchCall> watch_;
  Watcher watcher_;
  boost::asio::steady_timer watch_pause_;
};

EtcdClient::Calls::Calls(boost::asio::io_context& loop, EtcdOptions options)
    : options_(std::move(options)),
      gate_(std::make_shared<LoopGate<Calls>>(loop, *this)),
      watch_pause_(loop) {
  set_up_grpc();
  for (const EtcdMember& member : options_.members)
    members_.emplace_back(keep_for_ever(connect(member, options_)));
}

// Each call keeps itself alive until gRPC is done with it, also where that takes longer.
EtcdClient::Calls::~Calls() {
  gate_->close();
  stop_watching();
  const auto last_until = steady_clock::now() + kLastCallLimit;
  for (const UnderWay& one : under_way_)
    if (one.is_last) one.call->is_done.wait_until(last_until);
  for (const UnderWay& one : under_way_) one.call->context.TryCancel();
  const auto until = steady_clock::now() + kCancelLimit;
  for (const UnderWay& one : under_way_) one.call->is_done.wait_until(until);
}

// ---- questions ----

template <typename Request, typename Response>
void EtcdClient::Calls::ask_with_token(const SharedPendingCall<Request, Response>& asked) {
  if (options_.username.empty() || !token_.empty()) return try_member<Request, Response>(asked);
  wait_for_token_.push_back([this, asked](const Error* error) {
    if (error != nullptr) return asked->answer(*error);
    try_member<Request, Response>(asked);
  });
  authenticate();
}

template <typename Request, typename Response>
void EtcdClient::Calls::try_member(const SharedPendingCall<Request, Response>& asked) {
  auto call = std::make_shared<EtcdQuestion<Request, Response>>(asked->request);
  call->context.set_deadline(std::chrono::system_clock::now() + options_.call_limit);
  if (!token_.empty()) call->context.AddMetadata("token", token_);
  std::erase_if(under_way_, [](const UnderWay& one) {
    return one.call->is_done.wait_for(milliseconds(0)) == std::future_status::ready;
  });
  under_way_.push_back({call, asked->is_last});
  asked->member = current_;
  start(members_[current_], *call, [gate = gate_, call, asked](const grpc::Status& status) {
    gate->post([call, asked, status](Calls& self) {
      self.answered<Request, Response>(asked, call->response, status);
    });
    call->done.set_value();
  });
}

template <typename Request, typename Response>
void EtcdClient::Calls::answered(const SharedPendingCall<Request, Response>& asked,
                                 const Response& response, const grpc::Status& status) {
  if (status.ok()) return asked->answer(response);
  if (is_unavailable(status)) {
    const Error error(ErrorCode::kUnavailable, said(status, asked->member));
    // Several calls may have waited for one member that does not answer.
    if (asked->member == current_) next_member();
    if (++asked->tries >= members_.size()) return asked->answer(error);
    return ask_with_token<Request, Response>(asked);
  }
  if (!options_.username.empty() && wants_new_token(status) && !asked->had_new_token) {
    asked->had_new_token = true;
    token_.clear();
    return ask_with_token<Request, Response>(asked);
  }
  asked->answer(Error(code_of(status), said(status, asked->member)));
}

// A watch belongs to the member that is asked.
void EtcdClient::Calls::next_member() {
  if (members_.size() == 1) return;
  current_ = (current_ + 1) % members_.size();
  if (watch_) watch_->context.TryCancel();
}

// gRPC's message may have line breaks, and tells more than the user needs.
std::string EtcdClient::Calls::said(const grpc::Status& status, std::size_t asked) const {
  const EtcdMember& member = options_.members[asked];
  std::string text = status.error_message();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return fmt::format("{}: {}", endpoint(member.host, member.port), text);
}

// ---- user and password ----

void EtcdClient::Calls::authenticate() {
  if (is_authenticating_) return;
  is_authenticating_ = true;
  auto asked = std::make_shared<PendingCall<v3::AuthenticateRequest, v3::AuthenticateResponse>>();
  asked->request.set_name(options_.username);
  asked->request.set_password(options_.password);
  asked->had_new_token = true;
  asked->answer = [this](const Result<v3::AuthenticateResponse>& answer) { authenticated(answer); };
  try_member<v3::AuthenticateRequest, v3::AuthenticateResponse>(asked);
}

void EtcdClient::Calls::authenticated(const Result<v3::AuthenticateResponse>& answer) {
  is_authenticating_ = false;
  if (answer) token_ = answer->token();
  // Etcd without users takes no password, and gives no token: that is its error.
  const Error error = answer ? Error(ErrorCode::kRejected, "etcd gave no token") : answer.error();
  for (const auto& go_on : std::exchange(wait_for_token_, {}))
    go_on(token_.empty() ? &error : nullptr);
}

// ---- the watch ----

void EtcdClient::Calls::watch(const std::string& key, std::int64_t from_revision, Watcher watcher) {
  stop_watching();
  v3::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(from_revision);
  watcher_ = std::move(watcher);
  // The call tells itself from the next one; it holds itself only weakly.
  auto holder = std::make_shared<std::weak_ptr<WatchCall>>();
  auto tells = [gate = gate_, holder](bool is_changed) {
    gate->post([call = holder->lock(), is_changed](Calls& self) {
      self.watch_fired(call.get(), is_changed);
    });
  };
  watch_ = std::make_shared<WatchCall>(
      std::move(request), [tells] { tells(true); }, [tells] { tells(false); });
  *holder = watch_;
  if (!token_.empty()) watch_->context.AddMetadata("token", token_);
  // A member that was cut off from the others ends the watch, as if it were not there.
  watch_->context.AddMetadata("hasleader", "true");
  watch_->start(members_[current_]);
}

void EtcdClient::Calls::watch_fired(const EtcdCall* call, bool is_changed) {
  if (call == nullptr || call != watch_.get()) return;
  const Watcher watcher = std::exchange(watcher_, {});
  stop_watching();
  if (is_changed) return watcher.changed();
  watch_pause_.expires_after(kWatchPause);
  watch_pause_.async_wait([gate = gate_, watcher](const boost::system::error_code& error) {
    if (!error && gate->owner() != nullptr) watcher.ended();
  });
}

void EtcdClient::Calls::stop_watching() {
  watch_pause_.cancel();
  watcher_ = {};
  if (!watch_) return;
  watch_->context.TryCancel();
  under_way_.push_back({std::exchange(watch_, nullptr)});
}

// ---- the client ----

EtcdClient::EtcdClient(boost::asio::io_context& loop, EtcdOptions options)
    : calls_(std::make_unique<Calls>(loop, std::move(options))) {}

EtcdClient::~EtcdClient() = default;

void EtcdClient::transact(v3::TxnRequest request, Answer<v3::TxnResponse> answer) {
  calls_->ask<v3::TxnResponse>(std::move(request), std::move(answer));
}

void EtcdClient::transact_last(v3::TxnRequest request) {
  calls_->ask<v3::TxnResponse>(
      std::move(request), [](const Result<v3::TxnResponse>& /*nobody asks*/) {}, true);
}

void EtcdClient::grant(std::chrono::seconds length, Answer<Grant> answer) {
  v3::LeaseGrantRequest request;
  request.set_ttl(length.count());
  calls_->ask<v3::LeaseGrantResponse>(
      std::move(request),
      [answer = std::move(answer)](const Result<v3::LeaseGrantResponse>& granted) {
        if (!granted) return answer(granted.error());
        answer(Grant{granted->id(), std::chrono::seconds(granted->ttl())});
      });
}

void EtcdClient::keep_alive(LeaseId lease, Answer<milliseconds> answer) {
  v3::LeaseKeepAliveRequest request;
  request.set_id(lease);
  calls_->ask<v3::LeaseKeepAliveResponse>(
      std::move(request),
      [answer = std::move(answer)](const Result<v3::LeaseKeepAliveResponse>& kept) {
        if (!kept) return answer(kept.error());
        answer(std::chrono::seconds(kept->ttl()));
      });
}

void EtcdClient::watch(const std::string& key, std::int64_t from_revision, Watcher watcher) {
  calls_->watch(key, from_revision, std::move(watcher));
}

void EtcdClient::stop_watching() { calls_->stop_watching(); }

}  // namespace ddprun::rendezvous
