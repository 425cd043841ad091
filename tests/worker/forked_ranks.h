// Runs one function in several forked processes that share a collective, as the ranks of a job
// do. A failed EXPECT, an exception or a hang in any of them fails the calling test. The calling
// process must not have started threads (so no LibTorch operation before): forked children have
// only the calling one.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "worker/collective/core/split.h"
#include "worker/collective/shm/shm_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::worker {

// A rank that is not done by then is killed by SIGALRM.
inline constexpr unsigned kRankLifeSeconds = 50;

using RankBody = std::function<void(Collective&)>;

struct RanksOptions;
using JoinRank = std::function<Result<std::unique_ptr<Collective>>(
    int rank, const RanksOptions& options, Exchange& exchange)>;

inline Result<std::unique_ptr<Collective>> join_by_shm(int rank, const RanksOptions& options,
                                                       Exchange& exchange);

struct RanksOptions {
  int ranks = 2;
  std::chrono::milliseconds timeout{20'000};  // of each wait of the collective
  JoinRank join = join_by_shm;
};

inline Result<std::unique_ptr<Collective>> join_by_shm(int rank, const RanksOptions& options,
                                                       Exchange& exchange) {
  return as_collective(
      join_shm({.rank = rank, .ranks = options.ranks, .timeout = options.timeout}, exchange));
}

inline int rank_main(int rank, const RanksOptions& options, Exchange& exchange,
                     const RankBody& body) {
  ::alarm(kRankLifeSeconds);
  try {
    auto collective = options.join(rank, options, exchange);
    if (!collective) throw CollectiveError(collective.error().message());
    body(**collective);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// The wait status of each rank's process.
inline std::vector<int> run_ranks_to_end(const RanksOptions& options, const RankBody& body) {
  PipeExchange exchange(options.ranks);
  std::fflush(nullptr);  // or the children print it again
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int status = rank_main(rank, options, exchange, body);
      std::fflush(nullptr);
      ::_exit(status);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

inline void run_ranks(const RanksOptions& options, const RankBody& body) {
  const auto statuses = run_ranks_to_end(options, body);
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0)
        << "rank " << rank << " ended with wait status " << statuses[rank];
  }
}

inline void run_ranks(int ranks, const RankBody& body) { run_ranks({.ranks = ranks}, body); }

// Returns the message of the error that the body throws, or an empty string.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace ddprun::worker
