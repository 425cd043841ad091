#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
    return {std::move(memory), ticket, [=] { part.copy_(sent); }};
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
    return {std::move(memory), ticket, [=] {
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
  if (tensor.numel() == 0) return plan;
  const at::Tensor bytes = in_bytes(plain(tensor));
  const std::int64_t world = ranks_.world_size();
  const std::int64_t most = std::max(kPieceBytes / world / kRowUnit * kRowUnit, kRowUnit);
  plan.pieces = pieces_of(bytes.numel(), most);
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    const std::int64_t begin = piece * most;
    const std::int64_t length = std::min(most, bytes.numel() - begin);
    at::Tensor memory = take_staging(static_cast<std::size_t>(world * length));
    const at::Tensor rows = memory.narrow(0, 0, world * length).view({world, length});
    rows[ranks_.rank()].copy_(bytes.narrow(0, begin, length));
    const auto parts = parts_between(0, world * length, length, ranks_.world_size());
    const Ticket ticket = ranks_.launch_all_gather(bytes_of(rows, name), parts);
    return {std::move(memory), ticket, [=] {
              for (std::int64_t rank = 0; rank < world; ++rank)
                in_bytes(results[static_cast<std::size_t>(rank)])
                    .narrow(0, begin, length)
                    .copy_(rows[rank]);
            }};
  };
  return plan;
}

// The bytes that ranks give to each other: those of rank `from` for rank `to`.
struct TensorCollective::Exchange {
  Exchange(const Rows& rows, std::int64_t row_bytes, int of)
      : ranks(static_cast<std::int64_t>(rows.size())), rank(of) {
    for (std::int64_t from = 0; from < ranks; ++from) {
      for (std::int64_t to = 0; to < ranks; ++to) {
        bytes.push_back(rows[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] *
                        row_bytes);
        if (from != to) largest = std::max(largest, bytes.back());
      }
    }
    const std::int64_t most = std::max(kPieceBytes / (2 * ranks) / kRowUnit * kRowUnit, kRowUnit);
    block = std::min(largest, most);
  }

  std::int64_t between(std::int64_t from, std::int64_t to) const {
    return bytes[static_cast<std::size_t>(from * ranks + to)];
  }
  // The begin of those for `to` in this rank's tensor, and of those of `from` in its result.
  std::int64_t begin_for(std::int64_t to) const {
    std::int64_t begin = 0;
    for (std::int64_t before = 0; before < to; ++before) begin += between(rank, before);
    return begin;
  }
  std::int64_t begin_of(std::int64_t from) const {
    std::int64_t begin = 0;
    for (std::int64_t before = 0; before < from; ++before) begin += between(before, rank);
    return begin;
  }
  // How many travel in a piece.
  std::int64_t length(std::int64_t from, std::int64_t to, std::int64_t piece) const {
    if (from == to) return 0;
    return std::clamp<std::int64_t>(between(from, to) - piece * block, 0, block);
  }
  // A piece's memory has a block for each rank, and then a block of each.
  std::int64_t staging_bytes() const { return 2 * ranks * block; }
  std::vector<Transfer> transfers(std::int64_t piece) const {
    std::vector<Transfer> all;
    for (std::int64_t from = 0; from < ranks; ++from) {
      for (std::int64_t to = 0; to < ranks; ++to) {
        const std::int64_t count = length(from, to, piece);
        if (count == 0) continue;
        const auto begin = static_cast<std::size_t>(to * block);
        all.push_back({static_cast<int>(from), static_cast<int>(to), begin,
                       begin + static_cast<std::size_t>(count),
                       static_cast<std::size_t>((ranks + from) * block)});
      }
    }
    return all;
  }

  std::int64_t ranks;
  std::int64_t rank;
  std::vector<std::int64_t> bytes;  // row by row
  std::int64_t largest = 0;         // from one rank to another one
  std::int64_t block = 0;           // the most of them in a piece
};

TensorCollective::Plan TensorCollective::plan_all_to_all(const at::Tensor& result,
                                                         const at::Tensor& tensor, const Rows& rows,
                                                         const OperationName& name) {
  const Target target(result);
  const at::Tensor row = plain(tensor);
  std::int64_t row_bytes = item_bytes(row);
  for (std::int64_t dim = 1; dim < row.dim(); ++dim) row_bytes *= row.size(dim);
  const Exchange all(rows, row_bytes, ranks_.rank());
  Plan plan{
      "all_to_all", all.largest == 0 ? 0 : pieces_of(all.largest, all.block), {}, target.copy()};
  const auto given = [bytes = in_bytes(row), all](std::int64_t to, std::int64_t from_piece,
                                                  std::int64_t length) {
    return bytes.narrow(0, all.begin_for(to) + from_piece * all.block, length);
  };
  const auto place = [bytes = in_bytes(target.row), all](std::int64_t from, std::int64_t piece,
                                                         std::int64_t length) {
    return bytes.narrow(0, all.begin_of(from) + piece * all.block, length);
  };
  if (const std::int64_t own = all.between(all.rank, all.rank); own > 0)
    place(all.rank, 0, own).copy_(given(all.rank, 0, own));
  plan.launch = [=, this](std::int64_t piece) -> Work::Piece {
    at::Tensor memory = take_staging(static_cast<std::size_t>(all.staging_bytes()));
    for (std::int64_t to = 0; to < all.ranks; ++to) {
      if (const std::int64_t length = all.length(all.rank, to, piece); length > 0)
        memory.narrow(0, to * all.block, length).copy_(given(to, piece, length));
    }
    const Flat flat = bytes_of(memory.narrow(0, 0, all.staging_bytes()), name);
    const Ticket ticket = ranks_.launch_all_to_all(flat, all.transfers(piece));
    return {memory, ticket, [=] {
              for (std::int64_t from = 0; from < all.ranks; ++from) {
                if (const std::int64_t length = all.length(from, all.rank, piece); length > 0)
                  place(from, piece, length)
                      .copy_(memory.narrow(0, (all.ranks + from) * all.block, length));
              }
            }};
  };
  return plan;
}

}  // namespace ddprun
