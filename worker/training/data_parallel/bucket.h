// One bucket as a communication hook sees it: a hook says what travels instead of the plain sum. As
// in PyTorch's DistributedDataParallel a hook is called for each bucket of a pass. Buckets come in
// their order, as soon as their gradients are there. These are not divided yet. When the pass ends,
// the bucket's buffer must hold the average over the ranks.
//
//   parallel.comm_hook([](ddprun::worker::Bucket& bucket, ddprun::worker::Collective& collective) {
//     bucket.buffer().div_(collective.world_size());
//     bucket.sum();  // starts here; backward() goes on meanwhile
//   });
//
// A hook runs on the thread that runs backward(). All ranks must call the collective's verbs in the
// same order. Hooks see to that if they do the same for the same bucket. An error that a hook
// throws ends the pass, and comes out of backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "worker/collective/core/collective.h"

namespace ddprun::worker {

// Returns the name in messages: "bucket 3".
OperationName name_of_bucket(std::size_t index);

class Bucket {
 public:
  // The buffer must lie in memory of the collective. `parameters`: those of the bucket, in its
  // order.
  Bucket(std::size_t index, bool last, at::Tensor buffer, std::vector<at::Tensor> parameters,
         Collective& collective);

  // In launch order. After the first pass buckets may be rebuilt: then an index means another
  // bucket.
  std::size_t index() const { return index_; }
  bool is_last() const { return last_; }

  // The gradients of this rank, one after the other, in one dimension; complex ones as pairs of
  // numbers. An assignment to the result of buffer() is copied into the bucket.
  at::Tensor buffer() const { return buffer_; }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // The same memory as the buffer, by parameter and in its shape. Complex ones have a last
  // dimension of two more.
  std::vector<at::Tensor> gradients() const;

  // Starts to sum the buffer over all ranks.
  void sum() { sum(buffer_); }

  // Starts to sum another tensor: contiguous, in memory of the collective, of a dtype that a
  // parameter may have. Nobody may touch it before then() runs. `reduction`: kSum or kWideSum.
  void sum(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);

  // Runs when the pass ends and the bucket's sums are complete, in the order of the calls.
  void then(std::function<void()> act) { acts_.push_back(std::move(act)); }

  // Waits for the sums and runs what was left for then. GradientReducer calls it.
  void finish();

 private:
  std::size_t index_;
  bool last_;
  at::Tensor buffer_;
  std::vector<at::Tensor> parameters_;
  Collective& collective_;
  std::vector<Ticket> sums_;
  std::vector<std::function<void()>> acts_;
};

using CommHook = std::function<void(Bucket& bucket, Collective& collective)>;

// One parameter's step of an optimizer, with the average in its `.grad`.
using ParameterStep = std::function<void(at::Tensor& parameter)>;

}  // namespace ddprun::worker
