#include "rendezvous/channel.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <climits>

#include "rendezvous/codec.h"

namespace ddprun::rendezvous {
namespace {

// gRPC's pause between two connects grows from the first value to the second. With its defaults, 1
// s and 120 s (gRPC doc/connection-backoff.md), a node would find a late host much too late.
constexpr int kFirstBackoffMs = 50;
constexpr int kMaxBackoffMs = 500;
// After this time a connect gives up and a new one starts: the first packets to a host that is just
// coming up are lost, and gRPC's default of 20 s is a third of read_timeout.
constexpr int kConnectLimitMs = 3000;

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

}  // namespace

void set_up_grpc() {
  // Debian builds Abseil without NDEBUG. Each lock of gRPC then looks for deadlocks in a graph of
  // all locks that were ever held together: with 1,000 nodes that is half of all time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

std::string endpoint(const std::string& host, std::uint16_t port) {
  return is_v6(host) ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, std::uint16_t port) {
  set_up_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectLimitMs);
  // A connection of our own: gRPC would share one between all sessions of a process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // We try again ourselves, and a message must not reach the host twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Our messages are small. To learn how much a connection can carry would cost two packets and a
  // timer for each of them.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // No pings of gRPC: the kernel's keep-alive and our beats find dead hosts, and gRPC sets a timer
  // anew for each message.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // http_proxy is for the web, not for peers
  arguments.SetMaxReceiveMessageSize(kMaxDownBytes);
  arguments.SetMaxSendMessageSize(kMaxUpBytes);
  // The scheme says that what follows is no name (gRPC Name Resolution, "ipv4" and "ipv6").
  const std::string target = (is_v6(address) ? "ipv6:" : "ipv4:") + endpoint(address, port);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace ddprun::rendezvous
