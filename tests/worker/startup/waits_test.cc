// The lines of ranks that wait for each other: after 5 s, for what, and why it is not there.
#include <arpa/inet.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "tests/worker/startup/served_store.h"
#include "tests/worker/startup/try_bootstrap.h"
#include "worker/collective/tcp/tcp_collective.h"
#include "worker/startup/pipe_exchange.h"
#include "worker/startup/store_exchange.h"

namespace ddprun::worker {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kLong{600};
constexpr seconds kTellLimit{60};  // a line that is due after 5 s is there by then

// A process that waits; what it says on stderr is heard.
class WaitingRank {
 public:
  explicit WaitingRank(const std::function<void()>& body) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(kRankLifeSeconds);
      ::dup2(pipe[1], STDERR_FILENO);
      body();
      ::_exit(0);
    }
    ::close(pipe[1]);
    heard_ = pipe[0];
  }
  WaitingRank(const WaitingRank&) = delete;
  WaitingRank& operator=(const WaitingRank&) = delete;
  WaitingRank(WaitingRank&&) = delete;
  WaitingRank& operator=(WaitingRank&&) = delete;
  ~WaitingRank() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(heard_);
  }

  // Its first line of a wait, without time and pid; what it said until its end, if there is none.
  std::string told(Clock::time_point end) {
    std::string text;
    while (text.find("waiting for ") == text.npos || text.back() != '\n') {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      pollfd readable{heard_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) != 1) break;
      std::array<char, 512> bytes{};
      const auto got = ::read(heard_, bytes.data(), bytes.size());
      if (got <= 0) break;
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    const auto at = text.find("waiting for ");
    return at == text.npos ? text : text.substr(at, text.find('\n', at) - at);
  }

 private:
  pid_t pid_ = -1;
  int heard_ = -1;
};

// Listens and accepts nobody: the kernel takes connections all the same.
class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address_;
    auto* const raw = reinterpret_cast<sockaddr*>(&address_);
    EXPECT_EQ(::bind(socket_, raw, length), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, raw, &length), 0);
  }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;
  SilentPort(SilentPort&&) = delete;
  SilentPort& operator=(SilentPort&&) = delete;
  ~SilentPort() { ::close(socket_); }
  std::uint16_t port() const { return ::ntohs(address_.sin_port); }

 private:
  int socket_;
  sockaddr_in address_{};
};

class Waits : public ::testing::Test {
 protected:
  // `line` is what it must say; `…` stands for anything.
  void waits(const std::string& line, const std::function<void()>& body) {
    ranks_.emplace_back(line, std::make_unique<WaitingRank>(body));
  }
  void as_worker(const std::string& line, int rank, int world, std::uint16_t port) {
    waits(line, [=] {
      set_environment(worker(rank, world, port));
      [[maybe_unused]] const auto process = try_bootstrap({.timeout = kLong});
    });
  }
  // All wait at the same time.
  void expect_told() {
    const auto end = Clock::now() + kTellLimit;
    for (auto& [line, rank] : ranks_) {
      const std::string told = rank->told(end);
      const auto gap = line.find("…");
      if (gap == line.npos) {
        EXPECT_EQ(told, line);
        continue;
      }
      EXPECT_TRUE(told.starts_with(line.substr(0, gap))) << told << "\n" << line;
      EXPECT_TRUE(told.ends_with(line.substr(gap + std::string("…").size()))) << told << "\n"
                                                                              << line;
    }
  }

 private:
  std::list<std::pair<std::string, std::unique_ptr<WaitingRank>>> ranks_;
};

TEST_F(Waits, AtTheStoreAreTold) {
  const ServedStore first;
  const ServedStore second;
  const SilentPort silent;
  const auto at = [](std::uint16_t port) { return fmt::format("the store 127.0.0.1:{}", port); };
  as_worker(fmt::format("waiting for 5 s: rank 1 is at {}, and rank 0 of 2 has not come yet",
                        at(first.port())),
            1, 2, first.port());
  for (const int rank : {0, 2})
    as_worker(fmt::format("waiting for 5 s: rank {} is at {}, and rank 1, 3 of 4 has not come yet",
                          rank, at(second.port())),
              rank, 4, second.port());
  // Port 1 of the loopback: nothing listens there.
  as_worker(fmt::format("waiting for …: rank 1 connects to {}: Connection refused", at(1)), 1, 2,
            1);
  as_worker(fmt::format("waiting for 5 s: rank 1 connects to {}: somebody takes connections there, "
                        "and does not answer",
                        at(silent.port())),
            1, 2, silent.port());
  expect_told();
}

TEST_F(Waits, ForWhatOthersTellAtTheStoreAreTold) {
  const ServedStore store;
  const WorkerEnv env{
      .rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = store.port()};
  const auto of = [&env](int rank) {
    return meet_over_store(env, kLong, {.name = "shm", .rank = rank, .ranks = 2}).value();
  };
  const auto line = [&](int rank) {
    return fmt::format(
        "waiting for 5 s: rank {} of 2 is at the store 127.0.0.1:{}, and the others have "
        "not said there yet how to reach them",
        rank, store.port());
  };
  waits(line(1), [&] {
    const auto exchange = of(1);
    if (exchange->arrive()) [[maybe_unused]]
      const auto heard = exchange->hear();
  });
  waits(line(0), [&] {
    const auto exchange = of(0);
    if (exchange->arrive()) [[maybe_unused]]
      const auto all = exchange->gather(0, "mine");
  });
  expect_told();
}

TEST_F(Waits, AtAFileAreTold) {
  std::string folder = "/tmp/ddprun-waits-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto at_file = [&](const std::string& line, const std::string& name, int rank, int ranks) {
    const std::string method = "file://" + folder + "/" + name;
    waits(fmt::format("waiting for 5 s: init_method={}: {}", method, line), [=] {
      set_environment({});
      [[maybe_unused]] const auto process = try_bootstrap(
          {.timeout = kLong, .init_method = method, .rank = rank, .world_size = ranks});
    });
  };
  at_file("rank 1 is there, and rank 0 has not come yet", "one", 1, 2);
  at_file("rank 0 is there, and rank 1, 3 of 4 has not come yet", "two", 0, 4);
  at_file("rank 2 is there, and rank 1, 3 of 4 has not come yet", "two", 2, 4);
  expect_told();
  std::filesystem::remove_all(folder);
}

TEST_F(Waits, OfRanksOfOneProgramAndOverTcpAreTold) {
  PipeExchange alone(2);
  waits("waiting for 5 s: the other ranks that this program has forked",
        [&] { [[maybe_unused]] const auto here = alone.arrive(); });
  // Rank 1 says where it is, and does not connect.
  PipeExchange both(2);
  waits("waiting for 5 s: rank 0 on one has no connection with rank 1 on two (127.0.0.1 port 1)",
        [&] {
          [[maybe_unused]] const auto joined = join_tcp(
              {.rank = 0, .ranks = 2, .address = "127.0.0.1", .host = "one", .timeout = kLong},
              both);
        });
  ASSERT_TRUE(both.arrive());
  ASSERT_TRUE(both.gather(1, "127.0.0.1 1 " + std::string(32, '0') + " two"));
  expect_told();
}

// Rank 0 of mpirun serves the store.
TEST_F(Waits, OfRanksOfMpirunAreTold) {
  waits("waiting for …Connection refused", [] {
    set_environment({});
    for (const auto& [name, value] : Variables{{"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"PMIX_NAMESPACE", "waits"}})
      ::setenv(name.c_str(), value.c_str(), 1);
    [[maybe_unused]] const auto process = try_bootstrap({.timeout = kLong});
  });
  expect_told();
}

}  // namespace
}  // namespace ddprun::worker
