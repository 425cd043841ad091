// One bucket as a communication hook sees it: a hook says what travels instead of the plain sum. As
// in PyTorch's DistributedDataParallel a hook is called for each bucket of a pass. Buckets come in
// their order, as soon as their gradients are there. These are not divided yet. When the pass ends,
// the bucket's buffer must hold the average over the ranks.
//
//   parallel.comm_hook([](ddprun::Bucket& bucket, ddprun::Collective& collective) {
//     bucket.buffer().div_(collective.world_size());
//     bucket.sum();  // starts here; backward() goes on meanwhile
//   });
//
// A hook runs on the thread that runs backward(). All ranks must call the collective's operations
// in the same order. Hooks see to that if they do the same for the same bucket. An error that a
// hook throws ends the pass, and comes out of backward().
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace ddprun {

// A bucket of gradients, in the pass in which a hook gets it. DataParallel owns it, until the pass
// ends.
class Bucket {
 public:
  // Makes a bucket over a buffer, which must lie in memory of the collective. `parameters`: those
  // of the bucket, in its order.
  Bucket(std::size_t index, bool last, at::Tensor buffer, std::vector<at::Tensor> parameters,
         Collective& collective);

  // Returns the bucket's number in launch order, from 0. Buckets may be rebuilt after the first
  // pass. An index means another bucket then.
  std::size_t index() const { return index_; }
  // Says whether no bucket follows in this pass.
  bool is_last() const { return last_; }

  // Returns the gradients of this rank, one after the other, in one dimension; complex ones as
  // pairs of numbers. An assignment to the result of buffer() is copied into the bucket.
  at::Tensor buffer() const { return buffer_; }

  // Returns the parameters of the bucket, in the order of their gradients.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // Returns the same memory as the buffer, by parameter and in its shape. Complex ones have a last
  // dimension of two more.
  std::vector<at::Tensor> gradients() const;

  // Starts to sum the buffer over all ranks. All must call it, as they must any sum of a hook.
  void sum() { sum(buffer_); }

  // Starts to sum another tensor over all ranks. It is contiguous, in memory of the collective, of
  // a dtype that a parameter may have. Nobody may touch it before then() runs. `reduction`: kSum or
  // kWideSum.
  void sum(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);

  // Keeps `act` until the pass ends and the bucket's sums are complete. Acts run in the order of
  // the calls, on the thread of backward().
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

// A function that says what travels for a bucket; see the head of this file.
using CommHook = std::function<void(Bucket& bucket, Collective& collective)>;

// A step of an optimizer for one parameter, with the average in its `.grad`.
using ParameterStep = std::function<void(at::Tensor& parameter)>;

// Makes a hook that divides by the number of ranks, and sums. As without a hook, but for last bits.
// Without one the gradients are multiplied by 1/N where they are copied anyway.
CommHook all_reduce_hook();

// Makes a hook whose average travels as at::kHalf or at::kBFloat16: half the bytes. Each rank's
// gradient is divided in its own precision and then rounded, and the sum is rounded once. So
// |error| <= 2 e sum |g|/N, where e is 2^-11 or 2^-8. "hierarchical" rounds each host's sum first:
// 3 e. Buckets of 16 bits travel as they are. Throws std::invalid_argument for another dtype. The
// hook holds memory: use one for one DataParallel.
CommHook compressed_hook(at::ScalarType wire);

// Makes a hook for buckets of 16 bits, whose average travels and is added in float32. It is rounded
// once, where it comes back. Others go as with all_reduce_hook(). PyTorch's reduce_dtype, for one
// value of it.
CommHook float32_sum_hook();

// Wraps any other hook: it gets a copy of the bucket in that dtype. all_reduce_hook() rounds at
// each addition there.
CommHook compress_wrapper(CommHook inner, at::ScalarType wire);

// Options of power_sgd_hook(): PowerSGD as a communication hook. See Vogels, Karimireddy, Jaggi:
// "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019,
// algorithms 1 and 2. The gradient of a matrix travels as two thin matrices; what they cannot carry
// is added to the next gradient. The rules and the numbers are those of PyTorch 2.11
// (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py).
struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;  // columns of the thin matrices
  // So many passes are plain sums at first: early gradients change fast. At least 2, since the
  // buckets are rebuilt after the first pass.
  std::int64_t start_iteration = 1000;
  double min_compression_rate = 2;  // what would shrink less travels as it is
  bool use_error_feedback = true;   // add what the last pass could not carry
  bool warm_start = true;  // the thin matrices of a pass begin with those of the pass before
  double orthogonalization_epsilon = 0;  // added to the norms of columns: no division by zero
  std::uint32_t random_seed = 0;         // the same on all ranks
};

// Makes the hook. Throws std::invalid_argument for a rank below 1, and for a start below 2. All
// ranks must give equal options. The hook holds memory and errors of its DataParallel: use one for
// one.
CommHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace ddprun
