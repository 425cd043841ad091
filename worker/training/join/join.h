// Training with unlike numbers of batches: torch.distributed.algorithms.join.Join of PyTorch 2.11.
// A rank that has no more batches takes part in the others' sums until they have none either. It
// does so with zeros, as DataParallel does it.
//
//   {
//     const auto join = Join(parallel, optimizer);
//     for (const auto& [x, y] : batches) {  // 10 on one rank, 13 on another
//       optimizer.zero_grad();
//       loss(parallel.forward(net, x), y).backward();
//       parallel.step(optimizer);
//     }
//   }  // here the rank waits for the others; then all have the weights of a rank that came last
//
// The joinables in the order in which an iteration calls them; a DataParallel leads. All ranks must
// make the Join at the same place, with the same options. Beside these joinables an iteration must
// do nothing with the other ranks.
#pragma once

#include <memory>
#include <vector>

#include "worker/training/join/joinable.h"

namespace ddprun::worker {

class Join {
 public:
  // They must outlive it. Throws std::invalid_argument where they have unlike collectives, are in a
  // Join already, or cannot be joined.
  template <typename... Others>
  explicit Join(Joinable& leading, Others&... others) : Join(JoinOptions(), leading, others...) {}
  template <typename... Others>
  Join(const JoinOptions& options, Joinable& leading, Others&... others)
      : Join(options, std::vector<Joinable*>{&leading, &others...}) {}
  Join(const JoinOptions& options, const std::vector<Joinable*>& joinables);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  Join(Join&&) = delete;
  Join& operator=(Join&&) = delete;

  // This rank has no more batches. Returns when no rank has. Throws what the collective does, and
  // std::runtime_error with throw_on_early_termination. After an exception in its scope it does
  // nothing. The collective tells others that wait for this rank, when the program ends.
  ~Join() noexcept(false);

 private:
  void shadow_the_others();

  std::vector<Joinable*> joinables_;
  std::unique_ptr<JoinContext> context_;  // null: not enabled
  int exceptions_;                        // that were under way when it began
};

}  // namespace ddprun::worker
