// Ranks on two hosts, which are network namespaces with a cable between them. It takes root and ip(8).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/worker/tcp/tcp_ranks.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

bool run(const std::string& command) {
  return std::system((command + " 2>/dev/null").c_str()) == 0;
}

class TcpHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!run("unshare --net true") || !run("ip -V >/dev/null"))
      GTEST_SKIP() << "network namespaces need CAP_SYS_ADMIN and iproute2";
    for (const char* host : {"a", "b"}) ASSERT_TRUE(run("ip netns add " + name(host)));
    ASSERT_TRUE(run("ip link add cable netns " + name("a") + " type veth peer name cable netns " +
                    name("b")));
    for (const auto& [host, address] : {std::pair("a", "10.79.0.1/24"), {"b", "10.79.0.2/24"}}) {
      const std::string ip = "ip -n " + name(host);
      ASSERT_TRUE(run(ip + " addr add " + address + " dev cable") &&
                  run(ip + " link set cable up"));
    }
  }
  void TearDown() override {
    for (const char* host : {"a", "b"}) run("ip netns del " + name(host));
  }

  std::string name(const std::string& host) const { return "ddptcp" + std::to_string(pid_) + host; }

  // Rank 0 is on host a, rank 1 on host b.
  RanksOptions ranks(std::chrono::milliseconds timeout) const {
    return {.ranks = 2,
            .timeout = timeout,
            .join = [this](int rank, const RanksOptions& options, Exchange& exchange) {
              const std::string host = rank == 0 ? "a" : "b";
              const int fd = ::open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
              EXPECT_EQ(::setns(fd, CLONE_NEWNET), 0);
              TcpJob job = tcp_job(rank, options);
              job.address = rank == 0 ? "10.79.0.1" : "10.79.0.2";
              return as_collective(join_tcp(job, exchange));
            }};
  }

 private:
  pid_t pid_ = ::getpid();
};

TEST_F(TcpHosts, SumOverTheCable) {
  run_ranks(ranks(20s), [](Collective& both) {
    constexpr std::size_t kCount = 1'000'000;
    const auto memory = both.allocate(kCount * 4);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, kCount, static_cast<float>(both.rank() + 1));
    both.wait(both.launch_sum({numbers, kCount, Dtype::kFloat32}));
    EXPECT_EQ(std::count(numbers, numbers + kCount, 3.0F), std::ptrdiff_t{kCount});
  });
}

// Rank 1 has sent part of its sum when rank 0 cuts the cable and begins to take it.
TEST_F(TcpHosts, ACableThatIsCutInTheMiddleOfASum) {
  PipeExchange launched(2);
  run_ranks(ranks(4s), [&](Collective& both) {
    constexpr std::size_t kCount = 20'000'000;
    const auto memory = both.allocate(kCount * 4);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    const std::string message = message_of([&] {
      const Ticket ticket = both.rank() == 1 ? both.launch_sum(all) : 0;
      EXPECT_TRUE(launched.arrive().has_value());
      if (both.rank() == 0) {
        EXPECT_TRUE(run("ip -n " + name("a") + " link set cable down"));
      }
      both.wait(both.rank() == 1 ? ticket : both.launch_sum(all));
    });
    const std::string other = both.rank() == 0 ? "rank 1 on host1" : "rank 0 on host0";
    EXPECT_NE(message.find(other), std::string::npos) << message;
    EXPECT_NE(message.find(" 4 s; "), std::string::npos) << message;
  });
}

// Kernels send again what was lost.
TEST_F(TcpHosts, ACableThatIsDownForAMomentChangesNothing) {
  PipeExchange launched(2);
  run_ranks(ranks(30s), [&](Collective& both) {
    constexpr std::size_t kCount = 20'000'000;
    const auto memory = both.allocate(kCount * 4);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, kCount, 1.0F);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    Ticket ticket = both.rank() == 1 ? both.launch_sum(all) : 0;
    EXPECT_TRUE(launched.arrive().has_value());
    if (both.rank() == 0) {
      EXPECT_TRUE(run("ip -n " + name("a") + " link set cable down"));
      ticket = both.launch_sum(all);
      EXPECT_TRUE(run("ip -n " + name("a") + " link set cable up"));
    }
    both.wait(ticket);
    EXPECT_EQ(std::count(numbers, numbers + kCount, 2.0F), std::ptrdiff_t{kCount});
  });
}

}  // namespace
}  // namespace ddprun::worker
