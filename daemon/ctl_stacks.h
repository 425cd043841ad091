// The stacks of many ranks, for people: equal ones are shown once. Pure. Any thread.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/core/rank_stack.h"

namespace ddprun::daemon {

// "ranks 0-5,7 in all_reduce #51 (1000x3):" and a line a frame, the innermost first. Ranks without
// a stack come last, with the reason. `stacks`: by rank. With a newline at its end, or empty.
std::string stacks_text(const std::vector<rendezvous::RankStack>& stacks);

}  // namespace ddprun::daemon
