// Forked ranks of several "hosts". Each has a shared memory of its own, and all else goes over
// loopback.
#pragma once

#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "worker/collective/hierarchical/hierarchical_collective.h"

namespace ddprun::worker {

struct Shape {
  int hosts;
  int local_ranks;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.hosts << " hosts of " << shape.local_ranks;
}

// The exchanges that the ranks of a job use, made before they are forked.
struct Exchanges {
  explicit Exchanges(Shape shape) {
    for (int host = 0; host < shape.hosts; ++host)
      hosts.push_back(std::make_unique<PipeExchange>(shape.local_ranks));
    for (int local = 0; local < shape.local_ranks; ++local)
      peers.push_back(std::make_unique<PipeExchange>(shape.hosts));
  }
  std::vector<std::unique_ptr<PipeExchange>> hosts;
  std::vector<std::unique_ptr<PipeExchange>> peers;
  Wire wire = Wire::kExact;
};

inline RanksOptions hierarchical_ranks(Shape shape, Exchanges& exchanges) {
  return {.ranks = shape.hosts * shape.local_ranks,
          .join = [shape, &exchanges](int rank, const RanksOptions& options,
                                      Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
            const int host = rank / shape.local_ranks;
            const int local = rank % shape.local_ranks;
            HierarchicalParts parts;
            parts.all = join_tcp(tcp_job(rank, options), exchange).value();
            parts.host =
                join_shm({.rank = local, .ranks = shape.local_ranks, .timeout = options.timeout},
                         *exchanges.hosts[static_cast<std::size_t>(host)])
                    .value();
            TcpJob among_hosts = tcp_job(host, options);
            among_hosts.ranks = shape.hosts;
            among_hosts.wire = exchanges.wire;
            parts.peers =
                join_tcp(among_hosts, *exchanges.peers[static_cast<std::size_t>(local)]).value();
            return make_hierarchical_collective(std::move(parts));
          }};
}

}  // namespace ddprun::worker
