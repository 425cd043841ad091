// Forked ranks that TCP connects, over loopback.
#pragma once

#include <fmt/format.h>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/tcp/tcp_collective.h"

namespace ddprun::worker {

inline TcpJob tcp_job(int rank, const RanksOptions& options) {
  return {.rank = rank,
          .ranks = options.ranks,
          .address = "127.0.0.1",
          .host = fmt::format("host{}", rank),
          .timeout = options.timeout};
}

inline Result<std::unique_ptr<Collective>> join_by_tcp(int rank, const RanksOptions& options,
                                                       Exchange& exchange) {
  return as_collective(join_tcp(tcp_job(rank, options), exchange));
}

inline RanksOptions tcp_ranks(int ranks) { return {.ranks = ranks, .join = join_by_tcp}; }

}  // namespace ddprun::worker
