// The reports of the ranks to each other before each iteration while a Join lives, and the
// conclusion from them. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ddprun::worker {

// The report of one rank. Its bytes travel as they are.
struct JoinReport {
  bool active = false;        // it has a batch; the others shadow it
  bool records = false;       // active: its forward() has gradients on
  bool synchronises = false;  // active: its backward() will sum gradients
  bool last = false;          // not active: it has shadowed nobody yet

  bool operator==(const JoinReport&) const = default;
};

// The reports of all ranks together. Equal on all of them.
struct JoinRound {
  int ranks = 0;
  int active = 0;        // how many are
  int source = -1;       // the highest active rank; none: the highest one of those that came last
  bool records = false;  // an active rank does
  bool synchronises = false;  // an active rank does
  std::vector<int> joined;    // the ranks that are not active
};

// `reports`: by rank, what JoinReport has as bytes. Throws std::invalid_argument for other bytes.
JoinRound read_reports(std::span<const std::vector<std::byte>> reports);

// Why a rank throws when all shall as soon as one has no more batches; the beginning is PyTorch's.
// Empty: it goes on.
std::string early_end(const JoinRound& round, int rank, bool active);

}  // namespace ddprun::worker
