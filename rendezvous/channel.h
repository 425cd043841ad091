// How gRPC is set up, for both ends, and how it connects to the host: a channel to one numeric
// address. Used by client.cc and service.cc only.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

namespace ddprun::rendezvous {

// Call it before anything else of gRPC. Further calls do nothing.
void set_up_grpc();

// "host:port", with brackets around an IPv6 address.
std::string endpoint(const std::string& host, std::uint16_t port);

// gRPC is given no name: its own resolver would ask a second time, and might get another answer
// than the agent. The channel connects when it is first used, and again after each failure.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address, std::uint16_t port);

}  // namespace ddprun::rendezvous
