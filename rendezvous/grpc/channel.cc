#include "rendezvous/grpc/channel.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <climits>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/rate_limiter.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/trust/openssl.h"
#include "rendezvous/trust/tls_credentials.h"

namespace ddprun::rendezvous {
namespace {

// gRPC's pause between two connects grows from the first value to the second. With its defaults, 1
// s and 120 s (gRPC doc/connection-backoff.md), a node would find a late host much too late.
constexpr int kFirstBackoffMs = 50;
constexpr int kMaxBackoffMs = 500;
// After this time a connect gives up and a new one starts. The first packets to a host that is just
// coming up are lost. gRPC's default of 20 s is a third of read_timeout.
constexpr int kConnectLimitMs = 3000;
// With TLS the limit is the host's. A host to which a thousand nodes come at once needs seconds for
// their handshakes. Each that is given up is one more.
constexpr int kTlsConnectLimitMs = kIdleConnectionMs;

constexpr std::chrono::seconds kGrpcWarningEvery{10};
// A node has one call. It has a second one only for the moment in which the first ends.
constexpr int kCallsPerConnection = 4;

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

// Null if the files are no good now. They may be in a moment, when all three of them are replaced.
std::shared_ptr<grpc::ChannelCredentials> credentials(const ChannelTls& tls) {
  if (!tls.files.is_set()) return grpc::InsecureChannelCredentials();
  static std::mutex mutex;
  static RepeatedCheck check;
  const std::lock_guard lock(mutex);
  auto texts = read_tls_files(tls.files);
  if (!texts || !check.check(*texts, tls.files, std::chrono::system_clock::now())) return nullptr;
  return client_credentials(*std::move(texts));
}

// gRPC's own lines, of which unauthenticated peers can cause as many as they like.
void log_of_grpc(gpr_log_func_args* line) {
  static std::mutex mutex;
  static RateLimiter warnings(kGrpcWarningEvery);
  const std::lock_guard lock(mutex);
  if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
  if (const auto said = warnings.line(fmt::format("rendezvous: gRPC: {}", line->message),
                                      std::chrono::steady_clock::now()))
    log::warning(*said);
}

// The node says itself why its handshake failed (tls_probe.h).
void log_of_grpc_at_a_node(gpr_log_func_args* line) {
  if (!std::string_view(line->message).starts_with("Handshake failed")) log_of_grpc(line);
}

}  // namespace

void set_up_grpc() {
  set_up_openssl();
  [[maybe_unused]] static const bool done = [] {
    ::gpr_set_log_function(log_of_grpc_at_a_node);
    return true;
  }();
  // Debian builds Abseil without NDEBUG. Each lock of gRPC then looks for deadlocks in a graph of
  // all locks that were ever held together. With 1,000 nodes that is half of all time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void set_up_grpc_of_host() {
  set_up_grpc();
  ::gpr_set_log_function(log_of_grpc);
}

std::string endpoint(const std::string& host, std::uint16_t port) {
  return is_v6(host) ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, std::uint16_t port,
                                            const ChannelTls& tls, int max_message_bytes) {
  set_up_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   tls.files.is_set() ? kTlsConnectLimitMs : kConnectLimitMs);
  // A connection of our own: gRPC would share one between all sessions of a process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // We try again ourselves, and a message must not reach the host twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Our messages are small. To learn how much a connection can carry would cost two packets and a
  // timer for each of them.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // No pings of gRPC. The kernel's keep-alive and our heartbeats find dead hosts, and gRPC sets a
  // timer anew for each message.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // http_proxy is for the web, not for peers
  arguments.SetMaxReceiveMessageSize(max_message_bytes > 0 ? max_message_bytes : kMaxDownBytes);
  arguments.SetMaxSendMessageSize(kMaxUpBytes);
  // The scheme says that what follows is no name (gRPC Name Resolution, "ipv4" and "ipv6").
  const std::string target = (is_v6(address) ? "ipv6:" : "ipv4:") + endpoint(address, port);
  if (tls.files.is_set()) arguments.SetSslTargetNameOverride(tls.name);
  const auto shown = credentials(tls);
  return shown ? grpc::CreateCustomChannel(target, shown, arguments) : nullptr;
}

void set_up_server(grpc::ServerBuilder& builder) {
  set_up_grpc_of_host();
  builder.SetMaxReceiveMessageSize(kMaxUpBytes);
  // gRPC copies all arguments for each connection, one by one. So its default bounds are not said
  // again. They are a header list of 8 KiB, frames of 16 KiB, and 2 pings in 300 s. The meter
  // bounds frames and bytes in any case (http2_meter.h).
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  // As above.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
}

std::string call_metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

}  // namespace ddprun::rendezvous
