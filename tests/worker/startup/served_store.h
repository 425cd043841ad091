// The start of a worker, and a store for it.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "store/server.h"

namespace ddprun::worker {

using Variables = std::map<std::string, std::string>;

// Exactly these of a worker's variables are set.
inline void set_environment(const Variables& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "GROUP_WORLD_SIZE"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

inline Variables worker(int rank, int world, std::uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

// A store in a process of its own, as the agent is; ends with the object.
class ServedStore {
 public:
  ServedStore() {
    int ports[2];
    EXPECT_EQ(::pipe(ports), 0);
    pid_ = ::fork();
    if (pid_ == 0) serve(ports[1]);
    EXPECT_EQ(::read(ports[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
  }
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;
  ServedStore(ServedStore&&) = delete;
  ServedStore& operator=(ServedStore&&) = delete;
  ~ServedStore() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::uint16_t port() const { return port_; }

 private:
  [[noreturn]] static void serve(int ports) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    using boost::asio::ip::tcp;
    boost::asio::io_context loop(1);
    tcp::acceptor acceptor(loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    const std::uint16_t port = acceptor.local_endpoint().port();
    store::Server server(loop);
    server.serve(std::move(acceptor));
    if (::write(ports, &port, sizeof port) != sizeof port) ::_exit(1);
    loop.run();
    ::_exit(0);
  }

  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace ddprun::worker
