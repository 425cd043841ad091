// Ranks on two hosts, which are network namespaces with a cable between them. It takes root and
// ip(8).
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "worker/collective/hierarchical/hierarchical_collective.h"

namespace ddprun::worker {

class TwoHosts : public ::testing::Test {
 protected:
  // How late a deadline may be noticed; where much else runs, processors are rare. The kernel
  // itself gives a connection up after many minutes.
  static constexpr std::chrono::seconds kLate{15};

  static bool run(const std::string& command) {
    return std::system((command + " 2>/dev/null").c_str()) == 0;
  }

  void SetUp() override {
    if (!run("unshare --net true") || !run("ip -V >/dev/null"))
      GTEST_SKIP() << "network namespaces need CAP_SYS_ADMIN and iproute2";
    for (const char* host : {"a", "b"}) ASSERT_TRUE(run("ip netns add " + name(host)));
    ASSERT_TRUE(run("ip link add cable netns " + name("a") + " type veth peer name cable netns " +
                    name("b")));
    for (const auto& [host, address] : {std::pair("a", "10.79.0.1/24"), {"b", "10.79.0.2/24"}}) {
      const std::string ip = "ip -n " + name(host);
      ASSERT_TRUE(run(ip + " addr add " + address + " dev cable") &&
                  run(ip + " link set cable up") && run(ip + " link set lo up"));
    }
  }
  void TearDown() override {
    for (const char* host : {"a", "b"}) run("ip netns del " + name(host));
  }

  std::string name(const std::string& host) const { return "ddptcp" + std::to_string(pid_) + host; }

  bool set_cable(const std::string& up_or_down) const {
    return run("ip -n " + name("a") + " link set cable " + up_or_down);
  }

  // From now on this process is on host a (0) or b (1).
  void enter(int host) const {
    const std::string path = "/run/netns/" + name(host == 0 ? "a" : "b");
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::setns(fd, CLONE_NEWNET), 0);
  }

  // Rank 0 is on host a, rank 1 on host b.
  RanksOptions ranks(std::chrono::milliseconds timeout) const {
    return {.ranks = 2,
            .timeout = timeout,
            .join = [this](int rank, const RanksOptions& options, Exchange& exchange) {
              enter(rank);
              return as_collective(join_tcp(job(rank, rank, options), exchange));
            }};
  }

  // The exchanges of two hosts with two ranks each, beside that of all; made before ranks are
  // forked.
  struct Exchanges {
    std::array<PipeExchange, 2> hosts{PipeExchange(2), PipeExchange(2)};
    std::array<PipeExchange, 2> peers{PipeExchange(2), PipeExchange(2)};
  };

  // Ranks 0 and 1 are on host a, ranks 2 and 3 on host b.
  RanksOptions ranks_of_both(Exchanges& exchanges) const {
    return {.ranks = 4,
            .join = [this, &exchanges](int rank, const RanksOptions& options,
                                       Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
              const int host = rank / 2;
              const int local = rank % 2;
              enter(host);
              HierarchicalParts parts;
              parts.all = join_tcp(job(rank, host, options), exchange).value();
              parts.host = join_shm({.rank = local, .ranks = 2, .timeout = options.timeout},
                                    exchanges.hosts.at(static_cast<std::size_t>(host)))
                               .value();
              TcpJob peers = job(host, host, options);
              peers.ranks = 2;
              parts.peers =
                  join_tcp(peers, exchanges.peers.at(static_cast<std::size_t>(local))).value();
              return make_hierarchical_collective(std::move(parts));
            }};
  }

  // Bytes that the host of this process has put on the cable (proc(5), /proc/net/dev).
  static std::uint64_t sent_bytes() {
    std::ifstream file("/proc/self/net/dev");
    for (std::string line; std::getline(file, line);) {
      const auto begin = line.find("cable:");
      if (begin == std::string::npos) continue;
      std::istringstream numbers(line.substr(begin + 6));
      std::array<std::uint64_t, 9> fields{};  // eight of what came, then the bytes of what went
      for (auto& field : fields) numbers >> field;
      return fields.back();
    }
    ADD_FAILURE() << "no cable here";
    return 0;
  }

 private:
  static TcpJob job(int rank, int host, const RanksOptions& options) {
    TcpJob job = tcp_job(rank, options);
    job.address = host == 0 ? "10.79.0.1" : "10.79.0.2";
    job.host = "host" + std::to_string(host);
    return job;
  }

  pid_t pid_ = ::getpid();
};

}  // namespace ddprun::worker
