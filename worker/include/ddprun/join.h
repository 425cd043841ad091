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

#include <ddprun/collective.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace ddprun {

// The report of one rank. Its bytes travel as they are.
struct JoinReport {
  bool active = false;        // it has a batch; the others shadow it
  bool records = false;       // active: its forward() has gradients on
  bool synchronises = false;  // active: its backward() will sum gradients
  bool last = false;          // not active: it has shadowed nobody yet

  bool operator==(const JoinReport&) const = default;
};

// The reports of all ranks together. Equal on all of them.
struct JoinIteration {
  int ranks = 0;         // the number of all
  int active = 0;        // how many are
  int source = -1;       // the highest active rank; none: the highest one of those that came last
  bool records = false;  // an active rank does
  bool synchronises = false;  // an active rank does
  std::vector<int> joined;    // the ranks that are not active
};

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
  // Begins a Join of these ranks. They must outlive it.
  JoinContext(Collective& ranks, const JoinOptions& options) : ranks_(ranks), options_(options) {}

  // Begins an iteration: all ranks tell each other what they will do. All must call it. Throws
  // std::runtime_error on all ranks where one has no more batches and they shall throw then.
  JoinIteration meet(const JoinReport& mine);

  // Returns the ranks that join.
  Collective& ranks() const { return ranks_; }
  // Returns the options of the Join, which live as long as this.
  const JoinOptions& options() const { return options_; }
  // Says whether meet() has thrown: nobody is shadowed any more.
  bool over() const { return over_; }

 private:
  Collective& ranks_;
  JoinOptions options_;
  bool over_ = false;
};

// The interface between a Join and its members, which do something with the other ranks in each
// iteration: DataParallel, ZeroOptimizer. A class of the program may be one, too. Calls come from
// the training thread, at the same places on all ranks.
class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  Joinable(Joinable&&) = delete;
  Joinable& operator=(Joinable&&) = delete;

  // Returns the ranks of its sums. All joinables of a Join have the same.
  virtual Collective& join_ranks() = 0;
  // Begins a Join. `context` lives until end_join(). `leads`: it is the first of the Join's
  // joinables. It must call context.meet() before anything else that it does with the other ranks
  // in an iteration. Throws std::invalid_argument where it cannot.
  virtual void begin_join(JoinContext& context, bool leads) = 0;
  // Does what the others do in one iteration, and changes nothing for them. This rank has no more
  // batches, and others have. `round`: what the leading joinable's ranks have told.
  virtual void shadow(const JoinIteration& round) = 0;
  // Takes the state of rank `source`: no rank has any more batches. All ranks call it.
  virtual void settle(int source) = 0;
  // Ends the Join, however it does.
  virtual void end_join() noexcept = 0;

 protected:
  ~Joinable() = default;
};

// A scope in which ranks may have unlike numbers of batches. See the head of this file.
class Join {
 public:
  // Begins the Join with default options. All ranks must call it. The joinables must outlive it.
  // Throws std::invalid_argument where they have unlike collectives, are in a Join already, or
  // cannot be joined.
  template <typename... Others>
  explicit Join(Joinable& leading, Others&... others) : Join(JoinOptions(), leading, others...) {}
  // Begins it with options, the same on all ranks.
  template <typename... Others>
  Join(const JoinOptions& options, Joinable& leading, Others&... others)
      : Join(options, std::vector<Joinable*>{&leading, &others...}) {}
  // Begins it with a list of joinables, not null; the first one leads.
  Join(const JoinOptions& options, const std::vector<Joinable*>& joinables);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  Join(Join&&) = delete;
  Join& operator=(Join&&) = delete;

  // Ends this rank's batches, and waits until no rank has any. Throws what the collective does, and
  // std::runtime_error with throw_on_early_termination. After an exception in its scope it does
  // nothing. The collective tells others that wait for this rank, when the program ends.
  ~Join() noexcept(false);

 private:
  void shadow_the_others();

  std::vector<Joinable*> joinables_;
  std::unique_ptr<JoinContext> context_;  // null: not enabled
  int exceptions_;                        // that were under way when it began
};

}  // namespace ddprun
