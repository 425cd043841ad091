// The operations of the ranks on tensors of the program, as torch.distributed has them. Tensors may
// have any size and any strides, and lie on the collective's device. Types: float32, float64,
// float16, bfloat16, int64, int32, int8, uint8, and complex ones where they are not compared.
//
//   Collective& ranks = *process.collective;
//   TensorCollective tensors(ranks);
//   tensors.all_reduce(largest, Reduction::kMax);
//   const auto all = tensors.all_gather(largest);
//   const auto half = ranks.split(ranks.rank() % 2, 0);  // a group of ranks
//   ranks.monitored_barrier(std::chrono::seconds(60));   // past the limit it names who is late
//
// A call's `name` stands in the messages about it, and in the flight record.
//
// As with the collective, all ranks must call the same operations in the same order, also wait().
// Errors of the collective are CollectiveError. A tensor that an operation cannot take is
// std::invalid_argument, before any other rank has heard of it. One thread at a time: that of the
// collective. On CUDA nothing blocks the host but all_gather(), and an all-to-all with `rows`.
// Results are there for the current stream, which must be the same one in all calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace ddprun {

// The operations on tensors. See the head of this file.
class TensorCollective {
 public:
  // An operation that was launched. Only moved, never copied. Give it to wait().
  class Work {
   public:
    Work() = default;
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    Work(Work&&) = default;
    Work& operator=(Work&&) = default;
    ~Work() = default;

   private:
    friend class TensorCollective;
    struct Piece {
      at::Tensor memory;  // of the collective, from staging_
      Ticket ticket;
      std::function<void()> take;  // copies what came for this rank out of `memory`
    };
    struct State {
      const char* operation = "";
      std::deque<Piece> pieces;      // under way
      std::function<void()> finish;  // after all pieces; may be empty
      std::uint32_t resets = 0;      // of the collective, at its launch
    };
    std::unique_ptr<State> state_;  // null: nothing to wait for
  };

  // Takes the ranks, which must outlive this. Sends nothing.
  explicit TensorCollective(Collective& ranks) : ranks_(ranks) {}

  // Reduces over all ranks, in place. The sum's order of additions is that of the gradients. A
  // large tensor travels in pieces: it needs no more than 128 MiB beside it.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                  const OperationName& name = {});
  // Returns the tensors of all ranks, by rank: new ones. All must have the same type and sizes:
  // else CollectiveError. A large tensor travels in pieces: it needs no more than 128 MiB beside
  // the results. Up to 256 MiB of such memory are kept for calls to come.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const OperationName& name = {});
  // Makes an all_reduce() of which each rank keeps a part. `tensor` has n rows for each rank. Rank
  // r gets rows r·n … (r+1)·n - 1 of the result: sizes {n·ranks, …} become {n, …}.
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                            const OperationName& name = {});
  // Gives rows of the tensor to all ranks, and returns the rows that they give to this one, by
  // rank. Rank r gets the next rows[r] of them, which may be 0. All ranks give `rows`, or none
  // does: then each rank gets as many. A row must have the same type and sizes on all ranks. With
  // `rows` they compare that first, and CollectiveError is thrown on all of them.
  at::Tensor all_to_all(const at::Tensor& tensor, std::span<const std::int64_t> rows = {},
                        const OperationName& name = {});

  // Starts an all_reduce(). Until wait() nobody may touch the tensors of the call; then the result
  // is there. It needs the tensor's size once more, and the launches below what they give and get.
  Work launch_all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                         const OperationName& name = {});
  // Starts an all_gather(). `result` has the tensor's type, and as many elements as all ranks: it
  // gets their elements in a row.
  Work launch_all_gather(const at::Tensor& result, const at::Tensor& tensor,
                         const OperationName& name = {});
  // Starts a reduce_scatter(). `result` has the tensor's type, and the elements of one part.
  Work launch_reduce_scatter(const at::Tensor& result, const at::Tensor& tensor,
                             Reduction reduction = Reduction::kSum, const OperationName& name = {});
  // Starts an all_to_all(). `result` has the tensor's type, and the rows that come. It shares no
  // memory with the tensor. With `rows` it waits for all ranks, to hear who gives how many. All
  // ranks need the memory of the one that gives and gets most.
  Work launch_all_to_all(const at::Tensor& result, const at::Tensor& tensor,
                         std::span<const std::int64_t> rows = {}, const OperationName& name = {});
  // Waits until the results are there. Does nothing the second time.
  void wait(Work& launched);

  // Gives root's elements to all other ranks, in place.
  void broadcast(const at::Tensor& tensor, int root, const OperationName& name = {});

  // Sends to one rank, which must call receive(); the others call nothing. Returns when all has
  // been received.
  void send(const at::Tensor& tensor, int to, const OperationName& name = {});
  // Receives in place from one rank, which must call send() with as many bytes.
  void receive(const at::Tensor& tensor, int from, const OperationName& name = {});

 private:
  struct Plan;
  // By rank that gives, and by rank that gets.
  using Rows = std::vector<std::vector<std::int64_t>>;

  void check_device(const at::Tensor& tensor, const char* operation) const;
  void check_target(const at::Tensor& tensor, const char* operation) const;
  void check_result(const at::Tensor& result, const at::Tensor& tensor, std::int64_t elements,
                    const char* operation) const;
  void check_rows(const at::Tensor& tensor, const char* operation) const;
  void check_counts(const at::Tensor& tensor, std::span<const std::int64_t> rows) const;
  void check_peer(int peer, const char* operation) const;
  Plan plan_all_reduce(const at::Tensor& tensor, Reduction reduction, const OperationName& name);
  Plan plan_all_gather(const std::vector<at::Tensor>& results, const at::Tensor& tensor,
                       const OperationName& name);
  Plan plan_reduce_scatter(const at::Tensor& result, const at::Tensor& tensor, Reduction reduction,
                           const OperationName& name);
  Plan plan_all_gather_into(const at::Tensor& result, const at::Tensor& tensor,
                            const OperationName& name);
  Plan plan_all_to_all(const at::Tensor& result, const at::Tensor& tensor, Rows rows,
                       const OperationName& name);
  Rows rows_of_all(const at::Tensor& tensor, std::span<const std::int64_t> rows,
                   std::int64_t wanted);
  Work start(const Plan& plan);
  void run(const Plan& plan);
  void wait_for_first(std::deque<Work::Piece>& under_way);
  void require_alike(const at::Tensor& tensor);
  void drop_void_staging();
  at::Tensor take_staging(std::size_t bytes);
  void keep_staging(at::Tensor memory);

  Collective& ranks_;
  // Memory of the collective by its size in bytes, not in use. All ranks have the same. They launch
  // and wait in the same order, and a reset() of the collective empties it on all of them.
  std::map<std::size_t, std::vector<at::Tensor>> staging_;
  std::size_t kept_bytes_ = 0;
  std::uint32_t resets_ = 0;
};

}  // namespace ddprun
