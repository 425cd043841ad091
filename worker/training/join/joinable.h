// The interface between a Join and its members, which do something with the other ranks in each
// iteration: DataParallel, ZeroOptimizer. A class of the program may be one, too. Calls come from
// the training thread, at the same places on all ranks.
#pragma once

#include <span>

#include "worker/collective/core/collective.h"
#include "worker/training/join/join_round.h"

namespace ddprun::worker {

// PyTorch's arguments of join() (torch/nn/parallel/distributed.py of 2.11).
struct JoinOptions {
  bool enable = true;  // false: it does nothing, and costs no call of the collective
  // The divisor of gradients: the number of ranks, so that each batch weighs the same. False: the
  // number of those that still have batches.
  bool divide_by_initial_world_size = true;
  // All ranks throw std::runtime_error as soon as one has no more batches. It does so at the end of
  // its Join, the others in their next forward(). For models whose forward() has calls of the
  // collective that nobody shadows (SyncBatchNorm).
  bool throw_on_early_termination = false;
};

// The Join as its joinables see it.
class JoinContext {
 public:
  JoinContext(Collective& ranks, const JoinOptions& options) : ranks_(ranks), options_(options) {}

  // An iteration begins: all ranks tell each other what they will do. Throws std::runtime_error on
  // all ranks where one has no more batches and they shall throw then.
  JoinRound meet(const JoinReport& mine);

  Collective& ranks() const { return ranks_; }
  const JoinOptions& options() const { return options_; }
  // A meeting has thrown: nobody is shadowed any more.
  bool over() const { return over_; }

 private:
  Collective& ranks_;
  JoinOptions options_;
  bool over_ = false;
};

class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  Joinable(Joinable&&) = delete;
  Joinable& operator=(Joinable&&) = delete;

  virtual Collective& join_ranks() = 0;
  // A Join begins. `leads`: it is the first of the Join's joinables. It must call context.meet()
  // before anything else that it does with the other ranks in an iteration. Throws
  // std::invalid_argument where it cannot.
  virtual void begin_join(JoinContext& context, bool leads) = 0;
  // This rank has no more batches, others have: does what they do in one iteration, and changes
  // nothing for them. `round`: what the leading joinable's ranks have told.
  virtual void shadow(const JoinRound& round) = 0;
  // No rank has any more batches: takes the state of rank `source`.
  virtual void settle(int source) = 0;
  // The Join ends, however it does.
  virtual void end_join() noexcept = 0;

 protected:
  ~Joinable() = default;
};

}  // namespace ddprun::worker
