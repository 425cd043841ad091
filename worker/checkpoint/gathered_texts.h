// Texts of any length, from all ranks to all, by all_gather_bytes(). And results: all ranks go on,
// or none does. All ranks must call them. One thread.
#pragma once

#include <ddprun/collective.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

// By rank.
std::vector<std::string> gather_texts(const std::string& mine, Collective& ranks);

// The texts of all ranks; or the error of this rank, or of the first rank that has one.
Result<std::vector<std::string>> gather_results(const Result<std::string>& mine, Collective& ranks);

}  // namespace ddprun::worker
