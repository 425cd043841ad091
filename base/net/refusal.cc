#include "base/net/refusal.h"

#include "base/net/host_network.h"

namespace ddprun {

Refusal judge_refusal(const boost::asio::ip::tcp::endpoint& port) {
  if (!is_own_address(port.address())) return Refusal::kDoubt;
  const auto v4 = read_tcp_table(kTcpTable);
  if (!v4) return Refusal::kDoubt;  // no /proc
  const auto is_it = [number = port.port()](const TcpSocket& socket) {
    return listens_at(socket, number);
  };
  const bool listens = find_tcp_socket(*v4, is_it) ||
                       find_tcp_socket(read_tcp_table(kTcp6Table).value_or(""), is_it);
  return listens ? Refusal::kForged : Refusal::kClosed;
}

}  // namespace ddprun
