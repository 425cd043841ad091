// The connection between the agent and a standby or a fork server. Its sends and reads block the
// agent's loop, for a bounded time.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <string>
#include <string_view>

#include "agent/core/clock.h"
#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::agent {

// Connects `socket`, which is closed, to the end that it returns: for the other process.
Result<FileHandle> connect_standby(boost::asio::local::stream_protocol::socket& socket);

// Returns whether all of it was taken before `until`.
bool send_all(int socket, std::string_view text, Time until);

// Returns what is said next, at most `most` bytes. Empty if nothing came in time.
std::string await_answer(int socket, std::size_t most, Time until);

}  // namespace ddprun::agent
