// One connection of the store's server. Loop's thread; plain data.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "store/limits.h"
#include "store/waits.h"
#include "store/wire.h"

namespace ddprun::store {

// The buffer of an idle connection. Most requests fit. The rest of a longer one goes into the
// buffer that all connections share. So an idle connection does not own 64 KiB.
inline constexpr std::size_t kFirstReadBytes = 128;

// Two owners: the server's map while the connection is open, and its coroutine until it ends.
struct Connection {
  Connection(ConnectionId name, boost::asio::ip::tcp::socket connected, const StoreLimits& limits)
      : id(name), socket(std::move(connected)), decoder(limits) {}

  std::string_view unsent_bytes() const { return std::string_view(unsent).substr(sent); }

  ConnectionId id;
  boost::asio::ip::tcp::socket socket;
  Decoder decoder;
  // Answers that the kernel has not taken yet. While there are any, nothing is read. A client that
  // does not read its answers cannot make us hold more of them.
  std::string unsent;
  std::size_t sent = 0;     // of unsent
  std::size_t counted = 0;  // bytes of this connection within Core::buffered_bytes_
  bool open = true;         // false: dropped; its coroutine ends when it resumes
  // The decoder may hold whole requests that wait until answers are sent.
  bool requests_left = false;
  std::array<char, kFirstReadBytes> first_read;
};

}  // namespace ddprun::store
