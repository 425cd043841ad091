// Tells from an address's text alone whether it means this host. Pure: host_network.h asks the
// kernel, and name_lookup.h looks names up. Any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

namespace ddprun {

// Returns whether a numeric address is loopback (127.0.0.0/8, ::1, also IPv4-mapped). False for
// text that is no address.
inline bool is_loopback(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(address, error);
  if (error) return false;
  if (parsed.is_v4()) return parsed.to_v4().is_loopback();
  // A socket for IPv6 and IPv4 shows an IPv4 peer as ::ffff:127.0.0.1 (RFC 4291 section 2.5.5.2).
  const auto v6 = parsed.to_v6();
  if (!v6.is_v4_mapped()) return v6.is_loopback();
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, v6).is_loopback();
}

// Returns whether the text means "this machine" on every machine: "localhost", or a loopback
// address.
inline bool names_this_host(const std::string& text) {
  return text == "localhost" || is_loopback(text);
}

}  // namespace ddprun
