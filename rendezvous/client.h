// A node's session to a rendezvous in another process: the Session over gRPC. Connects, and tries
// again while the host is not up yet; once connected a broken or silent session is final (SessionLost).
// Used on the loop's thread; gRPC's threads enter it by post and nothing else.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/rendezvous.h"

namespace ddprun::rendezvous {

// leave() blocks no longer than this for the host's receipt (RemoteOptions::leave_limit).
inline constexpr std::chrono::milliseconds kLeaveLimit{1000};

struct RemoteOptions {
  std::string host;  // name or numeric address, IPv6 without brackets
  std::uint16_t port = 29400;
  std::string token;             // empty: none is sent
  std::string rdzv_id = "none";  // must be the job that the host serves
  // How long to try to reach the host, and how long it may take to let us in once reached.
  std::chrono::milliseconds read_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds beat_every = kBeatEvery;
  int silence_ticks = kSilenceTicks;
  std::chrono::milliseconds leave_limit = kLeaveLimit;
};

// Starts to connect at once; join() and the rest may be called before it is connected. SessionLost
// says what was tried: kTimedOut (nobody answered within read_timeout), kUnavailable (connection
// broke, host silent), kRejected (token, job id, rank), kProtocol. Destroying the session in any state
// takes no time; the host then counts this node as lost, unless it left. `loop` outlives the session.
std::unique_ptr<Session> open_remote_session(boost::asio::io_context& loop, RemoteOptions options,
                                             Session::MessageHandler handler);

}  // namespace ddprun::rendezvous
