// Looks up the name of a host, and waits until the name is known. The name of a pod or of a new
// virtual machine is often unknown for some seconds. It does not check whether the host answers.
// Loop's thread; the resolver itself runs on a thread of Asio's.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace ddprun {

// The pause before an unknown name is looked up again.
inline constexpr std::chrono::milliseconds kLookUpEvery{500};

// Returns the addresses of `host`, at least one, in the resolver's order. A numeric address is its
// own answer, and `localhost` is this host's loopback address: no resolver is asked. This host's
// own name, where the resolver does not know it, is outside_address(). Another unknown name is
// looked up again until `limit` has passed; one warning names it. Error kNotFound: the name stayed
// unknown, or the resolver does not answer.
asio::awaitable<Result<std::vector<asio::ip::address>>> look_up(asio::io_context& loop,
                                                                std::string host,
                                                                std::chrono::milliseconds limit);

}  // namespace ddprun
