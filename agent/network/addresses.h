// Which addresses are this host's own, and from which one it reaches a peer. No names are looked up
// here: numeric addresses in, numeric addresses out. Any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

namespace ddprun::agent {

// True for loopback and for every address of this host's interfaces (getifaddrs(3)).
bool is_local_address(const boost::asio::ip::address& address);

// The local address that the kernel's routes choose towards `peer`; `peer` itself when it is this
// host's own. Loopback when there is no route. Nothing is sent.
boost::asio::ip::address address_towards(const boost::asio::ip::address& peer);

// 127.0.0.1; `::1` on a host that has IPv6 only.
boost::asio::ip::address loopback_address();

// An address under which other hosts may reach this one: the first that is neither loopback nor
// link-local. Loopback when there is none.
boost::asio::ip::address outside_address();

// The name of the interface that has `address` ("eth0"); empty when none has it.
std::string interface_with(const boost::asio::ip::address& address);

// This host's name as the kernel has it; "localhost" where it has none.
std::string host_name();

}  // namespace ddprun::agent
