// Looks up the name of a host, and waits for it to appear: the name of a pod or of a fresh virtual
// machine is often unknown in its first seconds. Loop's thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "proto/loop.h"
#include "proto/result.h"

namespace ddprun::agent {

// A name that is not known is asked for again after this pause.
inline constexpr std::chrono::milliseconds kLookUpEvery{500};

// The addresses of `host`, at least one, in the resolver's order. A numeric address is its own
// answer, and `localhost` is this host's loopback: nobody is asked. An unknown name is asked for
// again until `limit` has passed; one warning names it. Error kNotFound: it stayed unknown.
asio::awaitable<Result<std::vector<asio::ip::address>>> look_up(asio::io_context& loop,
                                                                std::string host,
                                                                std::chrono::milliseconds limit);

}  // namespace ddprun::agent
