// Ranks of each kind of collective on the CPU, for tests that all of them pass.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>

#include "tests/worker/collective/hierarchical/hierarchical_ranks.h"
#include "tests/worker/collective/tcp/tcp_ranks.h"

namespace ddprun::worker {

struct Kind {
  const char* name;
  Shape shape;
  bool over_tcp = true;  // not all in one shared memory
  Wire wire = Wire::kExact;

  int ranks() const { return shape.hosts * shape.local_ranks; }
  bool can_reset() const { return shape.hosts == 1 || shape.local_ranks == 1; }
};

inline std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class KindsOfRanks : public ::testing::TestWithParam<Kind> {
 protected:
  RanksOptions options() {
    const auto [hosts, local_ranks] = GetParam().shape;
    if (std::string(GetParam().name) == "alone")
      return {.ranks = 1,
              .join = [](auto&&...) { return as_collective<Collective>(make_alone_collective()); }};
    if (!GetParam().over_tcp) return {.ranks = local_ranks};
    exchanges_ = std::make_unique<Exchanges>(GetParam().shape);  // they serve one start
    exchanges_->wire = GetParam().wire;
    if (local_ranks > 1) return hierarchical_ranks({hosts, local_ranks}, *exchanges_);
    RanksOptions tcp = tcp_ranks(hosts);
    tcp.join = [wire = GetParam().wire](int rank, const RanksOptions& all, Exchange& exchange) {
      TcpJob job = tcp_job(rank, all);
      job.wire = wire;
      return as_collective(join_tcp(job, exchange));
    };
    return tcp;
  }

 private:
  std::unique_ptr<Exchanges> exchanges_;
};

// Says whether a rank was told that another one has ended.
inline bool says_gone(const std::string& message) {
  return message.find("has ended") != std::string::npos ||
         message.find("has left") != std::string::npos;
}

// Says whether a rank was told that ranks do different things. Those that hear of it from others
// are told that these have ended.
inline bool says_unlike(const std::string& message) {
  return message.find("they do different things") != std::string::npos || says_gone(message);
}

inline auto all_kinds() {
  return ::testing::Values(Kind{"alone", {1, 1}, false}, Kind{"shm_1", {1, 1}, false},
                           Kind{"shm_2", {1, 2}, false}, Kind{"shm_3", {1, 3}, false},
                           Kind{"shm_4", {1, 4}, false}, Kind{"shm_5", {1, 5}, false},
                           Kind{"tcp_2", {2, 1}}, Kind{"tcp_3", {3, 1}}, Kind{"tcp_5", {5, 1}},
                           Kind{"tcp_as_bfloat16", {3, 1}, true, Wire::kBFloat16},
                           Kind{"hierarchical_2_2", {2, 2}}, Kind{"hierarchical_3_2", {3, 2}},
                           Kind{"hierarchical_2_3_as_bfloat16", {2, 3}, true, Wire::kBFloat16});
}

inline std::string name_of_kind(const ::testing::TestParamInfo<Kind>& test) {
  return test.param.name;
}

}  // namespace ddprun::worker
