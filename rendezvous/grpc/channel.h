// How gRPC is set up, for both ends, and how it connects to the host. That is a channel to one
// numeric address. For the two ends of a call only.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>

#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

// Call it before anything else of gRPC. Further calls do nothing.
void set_up_grpc();
// The same for a host, which also logs the handshakes of unauthenticated peers that fail.
void set_up_grpc_of_host();

// "host:port", with brackets around an IPv6 address.
std::string endpoint(const std::string& host, std::uint16_t port);

// TLS with the files that are there now; the host's certificate must bear `name`, or be one for
// that address. Without files it is in clear.
struct ChannelTls {
  TlsFiles files;
  std::string name;
};

// gRPC is given no name. Its own resolver would ask a second time, and might get another answer
// than the agent. The channel connects when it is first used, and again after each failure.
// `max_message_bytes`: of what is received; 0: as a node needs it. Null if the files are no good
// (tls_probe.h says why).
std::shared_ptr<grpc::Channel> make_channel(const std::string& address, std::uint16_t port,
                                            const ChannelTls& tls, int max_message_bytes = 0);

// gRPC closes a connection that carries no call for this long. Otherwise somebody who connects and
// says nothing would hold a descriptor.
inline constexpr int kIdleConnectionMs = 10'000;

// For every service of a host.
void set_up_server(grpc::ServerBuilder& builder);
// Returns the value that a call carries under this name. Empty if there is none.
std::string call_metadata(const grpc::ServerContextBase& context, const char* key);

}  // namespace ddprun::rendezvous
