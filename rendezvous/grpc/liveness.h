// Connections on which nobody speaks, from a node to the port of the agent that leads it. They tell
// at once whether that agent died. The kernel of a dead process closes a connection (FIN) if the
// process has read all of it. It resets one with unread bytes. A firewall that is loaded anew
// resets too, so a reset says nothing. The session's connection may have unread bytes at any time.
// This one never has, since a node sends its first byte and no other.
//
// An agent that lives closes none of them: one that it does not want it resets. A device between
// the two may close one. So the end counts only together with a refused connection (Leadership).
//
// Loop's thread. Owned by Election.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace ddprun::rendezvous {

// The first byte, by which the leader's port knows what the connection is for
// (rendezvous/grpc/port_demultiplexer.h). It begins no other protocol that we know.
inline constexpr char kLivenessFirstByte = 0x02;

class LivenessConnections {
 public:
  // `closed` gets the leader whose kernel closed a connection; it may destroy this.
  using OnClosed = std::function<void(const std::string& leader)>;
  explicit LivenessConnections(OnClosed closed);
  LivenessConnections(const LivenessConnections&) = delete;
  LivenessConnections& operator=(const LivenessConnections&) = delete;
  ~LivenessConnections();

  // `socket` has just been connected to the port of that leader. The last one that was not
  // followed goes: the process at the port may have been about to die.
  void hold(const std::string& leader, boost::asio::ip::tcp::socket socket);
  // The leader of the last one let this node in. Those before it go.
  void followed();
  void drop_all();

 private:
  class Connection;
  static void drop(std::shared_ptr<Connection>& connection);

  const OnClosed closed_;
  std::shared_ptr<Connection> current_;  // of the leader that let us in
  std::shared_ptr<Connection> next_;
};

}  // namespace ddprun::rendezvous
