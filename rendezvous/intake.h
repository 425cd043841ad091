// Takes connections that were accepted elsewhere, and hands them to gRPC when UnprovenConnections
// says so. Until then a connection is a descriptor, of which nothing is read. One that has not sent a
// whole beginning (HTTP/2's preface and SETTINGS, or a TLS hello) does not take part. With TLS it refuses
// those that come in clear, without gRPC. Loop's thread; owned by Service.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "proto/alarm.h"
#include "rendezvous/connections.h"
#include "rendezvous/trust/refusals.h"
#include "rendezvous/trust/unproven_connections.h"

namespace ddprun::rendezvous {

class Intake {
 public:
  struct Options {
    std::size_t most_waiting;
    bool wants_tls;  // who comes in clear is refused
  };
  // Hands the connection to gRPC, which owns `fd` from then on.
  using Serve = std::function<void(int fd, Connections::Way)>;

  // `connections` and `refusals` must outlive it.
  Intake(boost::asio::io_context& loop, Options options, Connections& connections,
         Refusals& refusals, Serve serve);
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;
  ~Intake();

  // Owns `fd`.
  void take(int fd, Connections::Way way);
  // Who called over the connection `peer` (gRPC's name for it) has proved that it knows the token.
  void let_in(const std::string& peer);

 private:
  void enter(int fd, Connections::Way way);
  void serve_next();
  void serve(int fd, Connections::Way way);
  void look();
  void sweep();
  void look_at_beginners();
  void forget_gone();
  void refuse_clear(int fd);

  boost::asio::io_context& loop_;
  const Options options_;
  Connections& connections_;
  Refusals& refusals_;
  const Serve serve_;
  UnprovenConnections unproven_;
  std::unordered_map<int, Connections::Way> waiting_;  // by descriptor
  struct Beginner {
    int fd;
    Connections::Way way;
    Alarm::Time until;
  };
  std::deque<Beginner> beginners_;  // oldest first
  Alarm::Time beginners_seen_{};
  Alarm::Time gone_seen_{};
  std::shared_ptr<int> clear_peers_ = std::make_shared<int>(0);  // that are being refused
  Alarm alarm_;
};

}  // namespace ddprun::rendezvous
