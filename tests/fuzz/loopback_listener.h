// A listener for a fuzzer that makes many of them. A port is the kernel's for a minute after its
// connections. So it must be none that the kernel gives to peers that connect: they would run out
// of ports.
#pragma once

#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>

#include "base/assert.h"
#include "base/loop.h"

namespace ddprun::fuzz {

// Below Linux' ephemeral ports, which begin at 32768.
inline constexpr std::uint16_t kFirstListenerPort = 20000;
inline constexpr std::uint16_t kListenerPorts = 10000;

// Each process has its own address of 127.0.0.0/8, and takes one port after the other there.
inline asio::ip::tcp::acceptor listen_on_loopback(asio::io_context& loop) {
  static std::uint16_t taken = 0;
  // A process's number has 22 bits at most.
  const asio::ip::address_v4 address(0x7F800000U | static_cast<std::uint32_t>(::getpid()));
  asio::ip::tcp::acceptor acceptor(loop, asio::ip::tcp::v4());
  acceptor.set_option(asio::socket_base::reuse_address(true));
  boost::system::error_code failed = asio::error::address_in_use;
  for (int tries = 0; failed == asio::error::address_in_use && tries < kListenerPorts; ++tries) {
    taken = static_cast<std::uint16_t>((taken + 1) % kListenerPorts);
    acceptor.bind({address, static_cast<std::uint16_t>(kFirstListenerPort + taken)}, failed);
    if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
  }
  DDPRUN_ASSERT(!failed);
  return acceptor;
}

}  // namespace ddprun::fuzz
