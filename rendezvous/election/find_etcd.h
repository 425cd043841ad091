// From the user's settings of etcd to those of its client. It looks the members' names up, and
// reads the PEM files. It does not connect. Loop's thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>

#include "base/loop.h"
#include "base/result.h"
#include "rendezvous/election/etcd_client.h"
#include "rendezvous/election/etcd_plan.h"

namespace ddprun::rendezvous {

// The names of all members are looked up, each for so long where another one is known already.
inline constexpr std::chrono::milliseconds kMemberLookUp{1000};

// A member whose name is unknown is left out where another one is known. Errors: kNotFound, no name
// became known within `limit`. Or kInvalidArgument: a file cannot be read; with its name and the
// `flag` that has it.
asio::awaitable<Result<EtcdOptions>> find_etcd(asio::io_context& loop, EtcdPlan plan,
                                               std::chrono::milliseconds limit,
                                               const char* flag = "--rdzv-conf");

// The member through which our own address is found. It is not at this host's loopback address if
// another is there, since other nodes must reach us.
asio::ip::address member_to_reach(const EtcdOptions& options);

}  // namespace ddprun::rendezvous
