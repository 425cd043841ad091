// The address at which the other daemons of a group, and the nodes, reach this one. Pure. Any
// thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <optional>
#include <string>

#include "base/result.h"

namespace ddprun {

// `etcd`: a member, not of this host alone where there is such a one. `local`: this host's
// address on the way to it; a loopback address where there is no way. Nothing if no other host
// would reach what there is. Ask again then. Error kInvalidArgument: none will, since the user
// wants this process to listen there.
Result<std::optional<std::string>> own_address(const std::string& listens_at,
                                               const boost::asio::ip::address& etcd,
                                               const boost::asio::ip::address& local);

}  // namespace ddprun
