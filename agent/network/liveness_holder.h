// The leader's end of the connections by which nodes see that it died (rendezvous/grpc/liveness.h).
// It holds them and reads their first byte. So its kernel closes them when this process dies. While
// it serves the port it closes none. One that it does not want it resets, which tells nobody that
// it died.
//
// Anybody can open such a connection, so they are few, and each address has its turn. Few are
// enough: the first node that sees the death takes over, and etcd tells the others.
//
// Loop's thread. Owned by HostedPort.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace ddprun::agent {

inline constexpr std::size_t kMostLiveness = 64;

// The places of connections that may stay. Pure.
class LivenessPlaces {
 public:
  using Number = std::uint64_t;  // in the order of their coming
  explicit LivenessPlaces(std::size_t most) : most_(most) {}

  // One more comes from this address. The one that must go for it; that may be the new one.
  std::optional<Number> take(Number number, const boost::asio::ip::address& from);
  void leave(Number number);
  std::size_t size() const { return places_.size(); }

 private:
  std::size_t count(const boost::asio::ip::address& of) const;
  std::optional<Number> oldest_of_the_greediest(std::size_t than) const;

  const std::size_t most_;
  std::map<Number, boost::asio::ip::address> places_;  // oldest first
  std::map<boost::asio::ip::address, std::size_t> counts_;
};

class LivenessHolder {
 public:
  explicit LivenessHolder(std::size_t most = kMostLiveness);
  LivenessHolder(const LivenessHolder&) = delete;
  LivenessHolder& operator=(const LivenessHolder&) = delete;
  // Closes all: nobody serves the port any more.
  ~LivenessHolder();

  // Its first byte has come, and was not read.
  void hold(boost::asio::ip::tcp::socket socket);
  std::size_t size() const;

 private:
  struct State;  // lives until the last wait has ended

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::agent
