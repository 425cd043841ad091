// Tells which addresses are this host's own, and from which of them it reaches a peer. It looks up
// no names (name_lookup.h does) and sends nothing. It keeps nothing: each call asks the kernel
// again. Any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

namespace ddprun {

// True for loopback, for the unspecified address (0.0.0.0, `::`), and for every address of this
// host's interfaces (getifaddrs(3)).
bool is_local_address(const boost::asio::ip::address& address);

// The local address from which the kernel's routes reach `peer`. If `peer` is this host's own
// address, `peer` itself. Loopback if there is no route.
boost::asio::ip::address local_address_for(const boost::asio::ip::address& peer);

// 127.0.0.1, or `::1` on a host that has only IPv6.
boost::asio::ip::address loopback_address();

// An address under which other hosts may reach this one. It is the first in the kernel's list that
// is neither loopback nor an IPv6 link-local address. Loopback if there is none.
boost::asio::ip::address outside_address();

// The name of the interface that has `address` ("eth0"). Empty if none has it.
std::string interface_with(const boost::asio::ip::address& address);

// This host's name (gethostname(2)); "localhost" if the kernel does not tell it.
std::string host_name();

}  // namespace ddprun
