#include "rendezvous/recovery/refusal.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::rendezvous {

using boost::asio::ip::udp;

namespace {

// Only an address of this host can be bound.
bool is_of_this_host(const boost::asio::ip::address& address) {
  if (address.is_loopback()) return true;
  boost::asio::io_context unused;
  udp::socket socket(unused);
  boost::system::error_code failed;
  socket.open(address.is_v6() ? udp::v6() : udp::v4(), failed);
  if (!failed) socket.bind({address, 0}, failed);
  return !failed;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

// A line is "  0: 0100007F:72C5 00000000:0000 0A …": number, own address, peer, state (10: listening).
bool lists_listener(std::string_view table, std::uint16_t port) {
  const std::string own = fmt::format(":{:04X}", port);
  constexpr std::string_view kListens = " 0A ";
  while (!table.empty()) {
    const auto end = table.find('\n');
    const std::string_view line = table.substr(0, end);
    table.remove_prefix(end == std::string_view::npos ? table.size() : end + 1);
    const auto address = line.find(": ");
    const auto after = address == std::string_view::npos ? address : line.find(' ', address + 2);
    if (after == std::string_view::npos) continue;
    const auto peer = line.find(' ', after + 1);
    const bool is_port = line.substr(0, after).ends_with(own);
    if (is_port && peer != std::string_view::npos && line.substr(peer, kListens.size()) == kListens)
      return true;
  }
  return false;
}

Refusal judge_refusal(const boost::asio::ip::tcp::endpoint& port) {
  if (!is_of_this_host(port.address())) return Refusal::kDoubt;
  const std::string v4 = text_of("/proc/net/tcp");
  if (v4.empty()) return Refusal::kDoubt;  // no /proc
  const bool listens =
      lists_listener(v4, port.port()) || lists_listener(text_of("/proc/net/tcp6"), port.port());
  return listens ? Refusal::kForged : Refusal::kClosed;
}

}  // namespace ddprun::rendezvous
