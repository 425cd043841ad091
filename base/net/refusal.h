// Judges what a refused connection says of the process that listened at the port. Its kernel
// refuses when the process is dead. A firewall that is being loaded anew refuses as well, with the
// same reset. It lets everybody through a moment later. On this host the kernel's list of listeners
// tells them apart. It takes time for another host: a firewall has its rules by then.
//
// Any thread; no I/O but /proc.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>

namespace ddprun {

// Another host's port that refuses for so long is closed. Loading a firewall takes a second or so.
inline constexpr std::chrono::milliseconds kRefusedFor{2500};
// The pause between two tries at a port that refuses.
inline constexpr std::chrono::milliseconds kAskAgain{100};

enum class Refusal {
  kClosed,  // nobody listens there: the process is dead
  kForged,  // somebody listens there: something on the way refused
  kDoubt,   // the port is another host's
};

// Judges the port that has just refused us.
Refusal judge_refusal(const boost::asio::ip::tcp::endpoint& port);

}  // namespace ddprun
