// How ranks of a collective form smaller ones, over the collective that they have. Collectives
// whose ranks are processes use it for split().
#pragma once

#include <ddprun/collective.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "worker/collective/core/exchange.h"

namespace ddprun::worker {

// A rank's place in its group. `ranks` is 0 for a rank that is in none.
struct GroupPlace {
  int rank = 0;
  int ranks = 0;
};

// The arguments of a rank.
struct SplitRequest {
  int color = 0;
  int key = 0;
};

// Returns the arguments of all ranks, which all must call.
std::vector<SplitRequest> gather_split_requests(Collective& all, SplitRequest request);

// The place of `rank` among all, by the rule of Collective::split(). Pure.
GroupPlace group_place(const std::vector<SplitRequest>& requests, int rank);

// A collective of some kind as one of any kind.
template <typename Kind>
Result<std::unique_ptr<Collective>> as_collective(Result<std::unique_ptr<Kind>> joined) {
  if (!joined) return joined.error();
  return std::unique_ptr<Collective>(std::move(*joined));
}

using JoinGroup =
    std::function<Result<std::unique_ptr<Collective>>(const GroupPlace& place, Exchange& exchange)>;

// Collective::split(): `join` makes the collective of a group, and has one exchange for that.
std::unique_ptr<Collective> split_group(Collective& all, SplitRequest request,
                                        const JoinGroup& join);

}  // namespace ddprun::worker
