// The errors of the ranks when they do different things, when one dies or is silent, and after
// reset().
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <string>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "worker/collective/tcp/tcp_connect.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

// As a job has it: nobody waits so long for a desync report.
RanksOptions patient_ranks(int ranks) {
  return {.ranks = ranks, .timeout = 600s, .join = join_by_tcp};
}

void expect_at_once(const std::function<void()>& body, std::string_view words) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = message_of(body);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(TcpFailures, ABarrierMeetsASum) {
  run_ranks(patient_ranks(2), [](Collective& ranks) {
    const auto memory = ranks.allocate(64);
    if (ranks.rank() == 0) {
      expect_at_once([&] { ranks.barrier(); },
                     "rank 0 does barrier (operation 2), rank 1 on host1 does sum of 64 bytes "
                     "(operation 2) of type float32: they do different things");
    } else {
      expect_at_once(
          [&] {
            ranks.wait(ranks.launch_sum({memory.get(), 16, Dtype::kFloat32}));
          },
          "rank 1 does sum of 64 bytes (operation 2) of type float32, rank 0 on host0 "
          "does barrier (operation 2)");
    }
  });
}

TEST(TcpFailures, BucketsOfAnotherModel) {
  run_ranks(patient_ranks(3), [](Collective& ranks) {
    const auto memory = ranks.allocate(256);
    const std::size_t count = ranks.rank() == 2 ? 17 : 16;
    expect_at_once(
        [&] {
          ranks.wait(ranks.launch_sum({memory.get(), count, Dtype::kFloat32}));
        },
        "they do different things, or train different models");
  });
}

TEST(TcpFailures, AnotherReduction) {
  run_ranks(patient_ranks(2), [](Collective& ranks) {
    const auto memory = ranks.allocate(64);
    const bool first = ranks.rank() == 0;
    expect_at_once(
        [&] {
          ranks.wait(ranks.launch({memory.get(), 16, Dtype::kFloat32},
                                  first ? Reduction::kMax : Reduction::kMin));
        },
        first ? "rank 0 does reduction of 64 bytes (operation 2) of type float32 to the greatest, "
                "rank 1 on host1 does reduction of 64 bytes (operation 2) of type float32 to the "
                "least: they do different things"
              : "rank 1 does reduction of 64 bytes (operation 2) of type float32 to the least");
  });
}

TEST(TcpFailures, OneStepMoreOnOneRank) {
  run_ranks(patient_ranks(2), [](Collective& ranks) {
    const auto memory = ranks.allocate(64);
    const auto step = [&] { ranks.wait(ranks.launch_sum({memory.get(), 16, Dtype::kFloat32})); };
    step();
    if (ranks.rank() == 0) {
      expect_at_once(step, "rank 1 on host1 does barrier (operation 3)");
    } else {
      expect_at_once([&] { ranks.barrier(); }, "rank 0 on host0 does sum of 64 bytes");
    }
  });
}

TEST(TcpFailures, BothReceive) {
  run_ranks(patient_ranks(2), [](Collective& ranks) {
    int number = 0;
    expect_at_once(
        [&] {
          ranks.receive({&number, 1, Dtype::kInt32}, 1 - ranks.rank());
        },
        "they do different things");
  });
}

// The others go on to wait; the one that is in no operation has left.
TEST(TcpFailures, ARankLeaves) {
  run_ranks(patient_ranks(3), [](Collective& ranks) {
    if (ranks.rank() == 1) return;
    expect_at_once([&] { ranks.barrier(); },
                   "rank 1 on host1 has left: its program has destroyed its collective");
  });
}

TEST(TcpFailures, ARankIsKilledInTheMiddle) {
  const auto statuses = run_ranks_to_end(patient_ranks(3), [](Collective& ranks) {
    constexpr std::size_t kCount = 5'000'000;
    const auto memory = ranks.allocate(kCount * 4);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    ranks.wait(ranks.launch_sum(all));
    if (ranks.rank() == 1) {
      ranks.launch_sum(all);
      ::raise(SIGKILL);
    }
    // Sums that it has launched may complete: all of it may have been sent.
    expect_at_once(
        [&] {
          ranks.wait(ranks.launch_sum(all));
          ranks.wait(ranks.launch_sum(all));
        },
        "has ended");
    // It stays so.
    EXPECT_NE(message_of([&] { ranks.barrier(); }), "");
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[2], 0);
}

// A rank that comes too late may pass the operation that the others have begun. It fails at the
// next one.
void expect_others_gave_up(Collective& ranks) {
  expect_at_once(
      [&] {
        ranks.barrier();
        ranks.barrier();
      },
      "did not come within");
}

TEST(TcpFailures, ASilentRankIsNamedAtTheDeadline) {
  auto options = tcp_ranks(3);
  options.timeout = 2s;
  PipeExchange given_up(3);
  run_ranks(options, [&](Collective& ranks) {
    const std::string message = ranks.rank() == 2 ? "" : message_of([&] { ranks.barrier(); });
    EXPECT_TRUE(given_up.arrive().has_value());
    if (ranks.rank() == 2) return expect_others_gave_up(ranks);
    EXPECT_NE(message.find("rank 2 on host2 did not come within 2 s; it began last barrier "
                           "(operation 1)"),
              std::string::npos)
        << message;
  });
}

// Not one that waits for it as we do.
TEST(TcpFailures, TheRankThatASumWaitsForIsNamed) {
  auto options = tcp_ranks(4);
  options.timeout = 2s;
  PipeExchange given_up(4);
  run_ranks(options, [&](Collective& ranks) {
    const auto memory = ranks.allocate(4000);
    const std::string message = ranks.rank() == 2 ? "" : message_of([&] {
      ranks.wait(ranks.launch_sum({memory.get(), 1000, Dtype::kFloat32}));
    });
    EXPECT_TRUE(given_up.arrive().has_value());
    if (ranks.rank() == 2) return;
    EXPECT_NE(message.find("rank 2 on host2 did not come within 2 s"), std::string::npos)
        << message;
  });
}

// A rank that has heard of a reset must call it, too. It cannot go on with its operation.
TEST(TcpFailures, NothingButResetAfterAReset) {
  run_ranks(patient_ranks(3), [](Collective& ranks) {
    const auto memory = ranks.allocate(4'000'000);
    const Flat all{memory.get(), 1'000'000, Dtype::kFloat32};
    if (ranks.rank() != 0) {
      // By rank 0, or by the other one that waited and came before.
      for (int i = 0; i < 3; ++i)
        expect_at_once([&] { ranks.wait(ranks.launch_sum(all)); },
                       "has called reset(), so nothing");
    }
    ranks.reset();
    ranks.wait(ranks.launch_sum(all));
  });
}

TEST(TcpFailures, AMonitoredBarrierNamesAllThatAreLate) {
  PipeExchange given_up(4);
  run_ranks(patient_ranks(4), [&](Collective& ranks) {
    const bool late = ranks.rank() % 2 != 0;
    const std::string message = late ? "" : message_of([&] { ranks.monitored_barrier(2s); });
    EXPECT_TRUE(given_up.arrive().has_value());
    if (late) return expect_others_gave_up(ranks);
    EXPECT_NE(message.find("rank 1 on host1, rank 3 on host3 did not come within 2 s"),
              std::string::npos)
        << message;
  });
}

// The limit is that of the barrier, also for the sum that comes before it.
TEST(TcpFailures, AMonitoredBarrierNamesThoseWhoseSumIsMissing) {
  PipeExchange given_up(4);
  run_ranks(patient_ranks(4), [&](Collective& ranks) {
    const bool late = ranks.rank() % 2 != 0;
    const auto memory = ranks.allocate(4000);
    const std::string message = late ? "" : message_of([&] {
      ranks.launch_sum({memory.get(), 1000, Dtype::kFloat32});
      ranks.monitored_barrier(2s);
    });
    EXPECT_TRUE(given_up.arrive().has_value());
    if (late)
      return expect_at_once(
          [&] {
            ranks.wait(ranks.launch_sum({memory.get(), 1000, Dtype::kFloat32}));
            ranks.barrier();
          },
          "did not come within");
    EXPECT_NE(message.find("sum of 4000 bytes"), std::string::npos) << message;
    EXPECT_NE(message.find("rank 1 on host1, rank 3 on host3 did not come within 2 s"),
              std::string::npos)
        << message;
  });
}

// Rank 1 gives up in the middle of its sums; rank 0 waits for them, and hears of it.
TEST(TcpFailures, GoOnAfterReset) {
  run_ranks(patient_ranks(3), [](Collective& ranks) {
    constexpr std::size_t kCount = 3'000'000;
    const auto memory = ranks.allocate(kCount * 4);
    const Flat all{memory.get(), kCount, Dtype::kFloat32};
    for (std::uint32_t pass = 1; pass <= 3; ++pass) {
      const int who_fails = static_cast<int>(pass) % 3;
      if (ranks.rank() == who_fails) {
        ranks.launch_sum(all);
        ranks.launch_sum(all);
        ranks.progress();
      } else {
        expect_at_once(
            [&] {
              ranks.wait(ranks.launch_sum(all));
              ranks.wait(ranks.launch_sum(all));
              ranks.barrier();
              ranks.barrier();
            },
            "has called reset(), so nothing of before completes");
      }
      ranks.reset();
      EXPECT_EQ(ranks.resets(), pass);
      auto* numbers = reinterpret_cast<float*>(memory.get());
      std::fill_n(numbers, kCount, 1.5F);
      ranks.wait(ranks.launch_sum(all));
      EXPECT_EQ(std::count(numbers, numbers + kCount, 4.5F), std::ptrdiff_t{kCount});
      ranks.barrier();
    }
  });
}

// Opens connections of its own to all ranks; `intruded` makes that come before they connect to each
// other.
class NosyExchange final : public Exchange {
 public:
  NosyExchange(Exchange& real, Exchange& intruded, std::string words)
      : real_(real), intruded_(intruded), words_(std::move(words)) {}
  Result<void> arrive() override { return real_.arrive(); }
  Result<void> announce(std::string_view text) override { return real_.announce(text); }
  Result<std::string> hear() override { return real_.hear(); }
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override {
    auto texts = real_.gather(rank, text);
    for (const std::string& card : *texts) {
      for (int i = 0; i < 3; ++i) intrude(card);
    }
    EXPECT_TRUE(intruded_.arrive().has_value());
    return texts;
  }

 private:
  void intrude(const std::string& card) {
    const auto port_at = card.find(' ') + 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(card.substr(port_at))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket, words_.data(), words_.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words_.size()));
    sockets_.push_back(socket);
  }

  Exchange& real_;
  Exchange& intruded_;
  std::string words_;
  std::vector<int> sockets_;  // open until the process ends
};

// Right in all but the secret: rank 2 of a build like this one.
std::string forged_hello() {
  std::string hello = "DDPTCP01" + std::string(16, '\x5a');
  for (const std::uint32_t number :
       {std::uint32_t{2},
        static_cast<std::uint32_t>(sizeof(FrameHead) << 16U | sizeof(OperationHead))})
    hello.append(reinterpret_cast<const char*>(&number), sizeof number);
  return hello;
}

TEST(TcpConnect, UnauthenticatedPeersAreNoRanks) {
  for (const std::string& words :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(200, 'x'),
        std::string("DDPTCP01") + std::string(24, '\0'), forged_hello()}) {
    PipeExchange intruded(3);
    auto options = tcp_ranks(3);
    options.join = [&](int rank, const RanksOptions& all, Exchange& exchange) {
      NosyExchange nosy(exchange, intruded, words);
      return as_collective(join_tcp(tcp_job(rank, all), nosy));
    };
    run_ranks(options, [](Collective& ranks) { ranks.barrier(); });
  }
}

// Gives one rank an address that nobody listens at.
class WrongExchange final : public Exchange {
 public:
  explicit WrongExchange(Exchange& real) : real_(real) {}
  Result<void> arrive() override { return real_.arrive(); }
  Result<void> announce(std::string_view text) override { return real_.announce(text); }
  Result<std::string> hear() override { return real_.hear(); }
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override {
    auto texts = real_.gather(rank, text);
    // Port 1 of loopback: refused at once.
    (*texts)[0] = "127.0.0.1 1" + texts->at(0).substr(texts->at(0).find(' ', 10));
    return texts;
  }

 private:
  Exchange& real_;
};

TEST(TcpConnect, ARankThatCannotBeReachedIsNamed) {
  auto options = tcp_ranks(2);
  options.join = [](int rank, const RanksOptions& all,
                    Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
    TcpJob job = tcp_job(rank, all);
    job.timeout = 500ms;
    WrongExchange wrong(exchange);
    const auto joined = join_tcp(job, wrong);
    const std::string message = joined ? "" : joined.error().message();
    const std::string wanted =
        rank == 1 ? "rank 1 on host1 cannot connect to rank 0 on host0 (127.0.0.1 port 1): "
                    "Connection refused"
                  : "rank 0 on host0 has no connection with rank 1 on host1";
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
    return make_alone_collective();
  };
  run_ranks(options, [](Collective& /*ranks*/) {});
}

// Ranks 1 and 2 find each other, and rank 2 does not reach rank 0. The others hear of it at once.
TEST(TcpConnect, ARankThatGivesUpEndsTheSetupOfAll) {
  auto options = tcp_ranks(3);
  options.timeout = 600s;
  options.join = [](int rank, const RanksOptions& all,
                    Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
    WrongExchange wrong(exchange);
    const auto begin = std::chrono::steady_clock::now();
    const auto joined =
        join_tcp(tcp_job(rank, all), rank == 2 ? static_cast<Exchange&>(wrong) : exchange);
    const std::string message = joined ? "" : joined.error().message();
    EXPECT_NE(message.find(rank == 2 ? "cannot connect to rank 0" : " on host"), std::string::npos)
        << rank << ": " << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    return make_alone_collective();
  };
  run_ranks(options, [](Collective& /*ranks*/) {});
}

TEST(TcpConnect, AnAddressOfAnotherHostIsRefusedOnAllRanks) {
  auto options = tcp_ranks(2);
  options.join = [](int rank, const RanksOptions& all,
                    Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
    TcpJob job = tcp_job(rank, all);
    if (rank == 0) job.address = "192.0.2.1";
    const auto joined = join_tcp(job, exchange);
    EXPECT_TRUE(!joined &&
                joined.error().message().find("listen at 192.0.2.1") != std::string::npos)
        << (joined ? "joined" : joined.error().message());
    return make_alone_collective();
  };
  run_ranks(options, [](Collective& /*ranks*/) {});
}

}  // namespace
}  // namespace ddprun::worker
