// Whether the peer of a connection has said or ended anything. Asio may call a socket readable that
// is not. It took the place of a socket that was closed while its readiness was on its way. So the
// one that waits looks, and waits on. Any thread.
#pragma once

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>

namespace ddprun {

// Returns whether the peer has neither sent a byte nor gone.
inline bool is_silent(boost::asio::ip::tcp::socket& socket) {
  char byte = 0;
  return ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EINTR);
}

}  // namespace ddprun
