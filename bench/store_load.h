// Clients that load a store server over raw sockets, for bench/store. All of an object's
// connections share one thread. So the client itself is part of the measurement, the same for both
// servers. Any error ends the program.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::bench {

inline constexpr std::string_view kValue = "sixteen bytes ok";

// Says why on stderr and ends the program with code 1.
[[noreturn]] void fail(std::string_view why);

// The value below which this share of `times` lies. `times` is sorted by it and not empty.
double quantile(std::vector<double>& times, double share);

// Requests as bytes (store/wire.h).
std::string get(std::string_view key);
std::string set(std::string_view key, std::string_view value);
std::string add(std::string_view key);
std::string check(std::string_view key);
std::string wait(std::string_view key);
std::string ping();
std::string multi_set(int pairs, std::string_view value);

struct Exchange {
  std::string request;
  std::size_t answer_bytes;
};

// One connection to 127.0.0.1. Blocks.
class Socket {
 public:
  enum class Greeting : std::uint8_t { kValidate, kNone };
  explicit Socket(std::uint16_t port, Greeting greeting = Greeting::kValidate);
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  void send(std::string_view bytes);
  // Reads so many bytes.
  void await(std::size_t bytes);
  void ask(std::string_view request, std::size_t answer_bytes);
  // Reads some of what is there, without waiting. False if nothing was there.
  bool discard();
  // Until the server ends the connection. Bytes that come before are dropped.
  void await_end();

 private:
  int fd_;
};

// Many connections, driven by one epoll. They are there, and have heard a PING answered, when the
// constructor returns: all of them connect at one time.
class Load {
 public:
  Load(std::uint16_t port, int connections);
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  Load(Load&&) = delete;
  Load& operator=(Load&&) = delete;
  ~Load();

  void send_all(std::string_view bytes);
  // Until each connection has read so many bytes.
  void await_all(std::size_t bytes);
  // Ends all, and waits until the server has ended them, too. Nothing else may follow.
  void close_and_wait();
  // Each connection keeps `depth` requests under way. Returns the time of each, in microseconds,
  // when the answers to all of them are there.
  std::vector<double> run(const Exchange& exchange, int depth, std::chrono::milliseconds span);

 private:
  struct Connection;

  void watch(std::size_t i, int operation, std::uint32_t events) const;
  template <typename Act>
  void each_event(Act act, std::uint32_t events);
  static void send(const Connection& connection, std::string_view bytes);

  int epoll_;
  std::vector<Connection> connections_;
};

}  // namespace ddprun::bench
