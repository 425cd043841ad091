// The choice of a GPU for each rank, and whether every rank has one of its own. Pure: each rank
// says what it found, and all of them come to the same answer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun::worker {

struct GpuQuestion {
  int local_rank = 0;
  std::optional<int> asked{};  // BootstrapOptions::gpu
  int visible = 0;             // GPUs that this process sees
};

// Returns the number of this rank's GPU, below `visible`. The program's choice comes first, then
// the only visible GPU, then that of the local rank. Schedulers and containers show each rank one
// GPU of its own. Error: kInvalidArgument.
Result<int> choose_gpu(const GpuQuestion& question);

// A rank tells this to the others.
struct DeviceClaim {
  std::string host;   // the same for all ranks of one host
  std::string gpu{};  // an id that no other GPU of this host has; empty: the rank has no GPU
  std::string why{};  // the reason why it has none, in one line
};

// A text for Exchange::gather(), and back. A long reason is cut. decode() takes an unknown text for
// a rank without a GPU.
std::string encode(const DeviceClaim& claim);
DeviceClaim decode_claim(std::string_view text);

// Returns why these ranks cannot use GPUs, in one line that names a rank. Empty if each of them has
// a GPU that no other one has. `claims`: those of all ranks, by rank.
std::string why_no_gpus(std::span<const DeviceClaim> claims);

}  // namespace ddprun::worker
