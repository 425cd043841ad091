#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "worker/collective/core/all_to_all_pieces.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/tensor_plan.h"
#include "worker/training/tensors/tensor_rows.h"

namespace ddprun {

using namespace worker;

namespace {

std::int64_t pieces_of(std::int64_t all, std::int64_t most) { return (all + most - 1) / most; }

std::int64_t item_bytes(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.itemsize());
}

// The beginning of `memory`, as a tensor like `part`.
at::Tensor staged(const at::Tensor& memory, const at::Tensor& part) {
  return memory.narrow(0, 0, static_cast<std::int64_t>(part.nbytes())).view(part.scalar_type());
}

// The same as the collective sees it. An empty tensor would have no address.
Flat first_bytes(const at::Tensor& memory, std::int64_t bytes, const OperationName& name) {
  return {memory.data_ptr(), static_cast<std::size_t>(bytes), Dtype::kUInt8, name};
}

// A row for a result, and what copies it there if the result is not plain.
struct Target {
  explicit Target(const at::Tensor& result)
      : tensor(result.detach()),
        row(is_plain(result) ? tensor : at::empty_like(tensor, at::MemoryFormat::Contiguous)) {}
  std::function<void()> copy() const {
    if (is_plain(tensor)) return {};
    return [*this] { tensor.copy_(row); };
  }

  at::Tensor tensor;
  at::Tensor row;
};

// The parts of numbers [begin, end) of a tensor, whose rows lie in the order of their ranks.
std::vector<Part> parts_between(std::int64_t begin, std::int64_t end, std::int64_t numbers,
                                int ranks) {
  std::vector<Part> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t from = std::max(rank * numbers, begin);
    const std::int64_t to = std::min((rank + 1) * numbers, end);
    if (from < to)
      parts.push_back(
          {rank, static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - begin)});
  }
  return parts;
}

}  // namespace

TensorCollective::Plan TensorCollective::plan_all_reduce(const at::Tensor& tensor,
                                                         Reduction reduction,
                                                         const OperationName& name) {
  const at::Tensor row = plain(tensor);
  const at::Tensor numbers = in_numbers(row);
  const std::int64_t most = kPieceBytes / item_bytes(numbers);
  Plan plan{"all_reduce", pieces_of(numbers.numel(), most)};
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    const std::int64_t begin = piece * most;
    const at::Tensor part = numbers.narrow(0, begin, std::min(most, numbers.numel() - begin));
    at::Tensor memory = take_staging(part.nbytes());
    const at::Tensor sent = staged(memory, part);
    sent.copy_(part);
    Flat flat = flat_of(sent);
    flat.name = name;
    const Ticket ticket = ranks_.launch(flat, reduction);
    return {memory, ticket, [=] { part.copy_(sent); }};
  };
  if (!is_plain(tensor)) plan.finish = [row, target = tensor.detach()] { target.copy_(row); };
  return plan;
}

TensorCollective::Plan TensorCollective::plan_reduce_scatter(const at::Tensor& result,
                                                             const at::Tensor& tensor,
                                                             Reduction reduction,
                                                             const OperationName& name) {
  const Target target(result);
  const at::Tensor numbers = in_numbers(plain(tensor));
  const at::Tensor results = in_numbers(target.row);
  const std::int64_t most = kPieceBytes / item_bytes(numbers);
  Plan plan{"reduce_scatter", pieces_of(numbers.numel(), most), {}, target.copy()};
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    const std::int64_t begin = piece * most;
    const at::Tensor part = numbers.narrow(0, begin, std::min(most, numbers.numel() - begin));
    const std::int64_t end = begin + part.numel();
    at::Tensor memory = take_staging(part.nbytes());
    const at::Tensor sent = staged(memory, part);
    sent.copy_(part);
    Flat flat = flat_of(sent);
    flat.name = name;
    const auto parts = parts_between(begin, end, results.numel(), ranks_.world_size());
    const Ticket ticket = ranks_.launch_reduce_scatter(flat, parts, reduction);
    const std::int64_t first = ranks_.rank() * results.numel();
    const std::int64_t from = std::max(first, begin);
    const std::int64_t length = std::min(first + results.numel(), end) - from;
    return {memory, ticket, [=] {
              if (length > 0)
                results.narrow(0, from - first, length).copy_(sent.narrow(0, from - begin, length));
            }};
  };
  return plan;
}

TensorCollective::Plan TensorCollective::plan_all_gather(const std::vector<at::Tensor>& results,
                                                         const at::Tensor& tensor,
                                                         const OperationName& name) {
  Plan plan{"all_gather"};
  const at::Tensor bytes = in_bytes(plain(tensor));
  const std::int64_t world = ranks_.world_size();
  const std::int64_t most = std::max(kPieceBytes / world / kRowUnit * kRowUnit, kRowUnit);
  // One at least: a rank that brings nothing is told if others bring something.
  plan.pieces = std::max<std::int64_t>(pieces_of(bytes.numel(), most), 1);
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    const std::int64_t begin = piece * most;
    const std::int64_t length = std::min(most, bytes.numel() - begin);
    at::Tensor memory = take_staging(static_cast<std::size_t>(world * length));
    const at::Tensor rows = memory.narrow(0, 0, world * length).view({world, length});
    rows[ranks_.rank()].copy_(bytes.narrow(0, begin, length));
    const auto parts = parts_between(0, world * length, length, ranks_.world_size());
    const Ticket ticket =
        ranks_.launch_all_gather(first_bytes(memory, world * length, name), parts);
    return {memory, ticket, [=] {
              for (std::int64_t rank = 0; rank < world; ++rank)
                in_bytes(results[static_cast<std::size_t>(rank)])
                    .narrow(0, begin, length)
                    .copy_(rows[rank]);
            }};
  };
  return plan;
}

TensorCollective::Plan TensorCollective::plan_all_gather_into(const at::Tensor& result,
                                                              const at::Tensor& tensor,
                                                              const OperationName& name) {
  const Target target(result);
  const auto rows = target.row.view({ranks_.world_size(), tensor.numel()}).unbind();
  Plan plan = plan_all_gather(rows, tensor, name);
  plan.finish = target.copy();
  return plan;
}

TensorCollective::Plan TensorCollective::plan_all_to_all(const at::Tensor& result,
                                                         const at::Tensor& tensor, Rows rows,
                                                         const OperationName& name) {
  const Target target(result);
  const at::Tensor given = plain(tensor);
  std::int64_t row_bytes = item_bytes(given);
  for (std::int64_t dim = 1; dim < given.dim(); ++dim) row_bytes *= given.size(dim);
  for (auto& from : rows) {
    for (std::int64_t& count : from) count *= row_bytes;
  }
  const std::int64_t rank = ranks_.rank();
  const auto all = std::make_shared<const AllToAllPieces>(std::move(rows), kPieceBytes);
  const at::Tensor gives = in_bytes(given);
  const at::Tensor gets = in_bytes(target.row);
  Plan plan{"all_to_all", all->pieces(), {}, target.copy()};
  if (const auto own = all->own(rank); own.length > 0)
    gets.narrow(0, own.got, own.length).copy_(gives.narrow(0, own.given, own.length));
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    const std::int64_t bytes = all->memory_bytes(piece);
    at::Tensor memory = take_staging(static_cast<std::size_t>(bytes));
    for (const auto& range : all->gives(rank, piece))
      memory.narrow(0, range.memory, range.length)
          .copy_(gives.narrow(0, range.whole, range.length));
    const Ticket ticket =
        ranks_.launch_all_to_all(first_bytes(memory, bytes, name), all->transfers(piece));
    return {memory, ticket, [=] {
              for (const auto& range : all->gets(rank, piece))
                gets.narrow(0, range.whole, range.length)
                    .copy_(memory.narrow(0, range.memory, range.length));
            }};
  };
  return plan;
}

}  // namespace ddprun
