// Whether all ranks have the same 64 bits. A small sum tells it, which travels beside other sums.
// So it has no wait of its own, as an all_gather_bytes() has. On CPU.
//
//   EqualWord same(ranks);  // all ranks
//   same.launch(hash);
//   ranks.launch_sum(gradients);
//   …
//   if (!same.finish()) …  // on all ranks, or on none
#pragma once

#include <ddprun/collective.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace ddprun::worker {

// The word in four pieces: each piece, and its square.
using WordSums = std::array<std::int64_t, 8>;
WordSums pieces_of(std::uint64_t word);

// Returns whether `ranks` equal words have these sums. Exact for fewer than 90,000 ranks. Pure.
bool all_equal(const WordSums& sums, std::uint64_t ranks);

class EqualWord {
 public:
  // All ranks must call it. The collective must outlive this.
  explicit EqualWord(Collective& ranks);

  // All ranks must call it at the same place among their operations.
  void launch(std::uint64_t word, const OperationName& name = {});
  bool under_way() const { return under_way_.has_value(); }

  // Waits for the sum. The same answer on all ranks.
  bool finish();

  // The sum was given up by the collective's reset().
  void drop() { under_way_.reset(); }

 private:
  Collective& ranks_;
  std::shared_ptr<std::byte> memory_;  // of a WordSums
  std::optional<Ticket> under_way_;
};

}  // namespace ddprun::worker
