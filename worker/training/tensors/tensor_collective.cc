#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/summable.h"

namespace ddprun {

using namespace worker;

namespace {

// A large tensor travels in pieces: the memory of one is used again for the next but one.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
constexpr std::size_t kSmallestPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kPiecesUnderWay = 2;
// A rank's row of a gathered piece has a multiple of so many bytes, so that rows are aligned. Rows
// of the last piece may be shorter.
constexpr std::int64_t kRowUnit = 512;
// Memory for tensors to come.
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

[[noreturn]] void refuse(const char* operation, const std::string& why) {
  throw std::invalid_argument(fmt::format("{}: {}", operation, why));
}

std::string type_name(const at::Tensor& tensor) { return c10::toString(tensor.scalar_type()); }

void check_type(const at::Tensor& tensor, Reduction reduction) {
  const std::string type = type_name(tensor);
  if (!reducible(tensor.scalar_type()))
    refuse("all_reduce", type + " cannot be reduced: give it another type");
  const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (tensor.is_complex() && compares)
    refuse("all_reduce", type + " has no order: it can be summed and averaged");
  const bool divides = tensor.is_floating_point() || tensor.is_complex();
  if (reduction == Reduction::kAverage && !divides)
    refuse("all_reduce",
           fmt::format("the average of {} is no {}: give it a floating-point type", type, type));
}

// Type and sizes, as all ranks can compare them.
std::string description(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", type_name(tensor), fmt::join(tensor.sizes(), ", "));
}

// Returns whether its memory has its elements in a row, as they are.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// The tensor, or a copy that is plain.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

Flat bytes_of(const at::Tensor& tensor, const OperationName& name) {
  return {tensor.data_ptr(), tensor.nbytes(), Dtype::kUInt8, name};
}

// The bytes of a plain tensor that has some, in a row: the same memory.
at::Tensor in_bytes(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

// The beginning of `memory`, as a tensor like `part`.
at::Tensor staged(const at::Tensor& memory, const at::Tensor& part) {
  return memory.narrow(0, 0, static_cast<std::int64_t>(part.nbytes())).view(part.scalar_type());
}

}  // namespace

void TensorCollective::check_device(const at::Tensor& tensor, const char* operation) const {
  const bool cuda = ranks_.device() == Device::kCuda;
  if (tensor.is_cuda() != cuda || (!cuda && !tensor.is_cpu()))
    refuse(operation, fmt::format("the tensor lies on {}, and {} has ranks on {}",
                                  tensor.device().str(), ranks_.name(), cuda ? "GPUs" : "CPUs"));
  if (tensor.layout() != at::kStrided) refuse(operation, "the tensor is sparse: give its values");
}

// One that is written.
void TensorCollective::check_target(const at::Tensor& tensor, const char* operation) const {
  check_device(tensor, operation);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    refuse(operation, "elements of the tensor share memory (expand()): give a clone()");
}

void TensorCollective::check_peer(int peer, const char* operation) const {
  if (peer >= 0 && peer < ranks_.world_size() && peer != ranks_.rank()) return;
  refuse(operation, fmt::format("rank {} cannot be the peer of rank {} among {}", peer,
                                ranks_.rank(), ranks_.world_size()));
}

// As long as a power of two, so that tensors of like size share it.
at::Tensor TensorCollective::take_staging(std::size_t bytes) {
  const std::size_t length = std::bit_ceil(std::max(bytes, kSmallestPieceBytes));
  auto& unused = staging_[length];
  if (unused.empty()) {
    // Later calls write to it, also those outside of an InferenceMode.
    const c10::InferenceMode normal(false);
    const auto device = device_of(ranks_);
    return allocate_tensor(static_cast<std::int64_t>(length),
                           at::TensorOptions().dtype(at::kByte).device(device), ranks_);
  }
  at::Tensor memory = std::move(unused.back());
  unused.pop_back();
  kept_bytes_ -= length;
  return memory;
}

void TensorCollective::keep_staging(at::Tensor memory) {
  const std::size_t length = memory.nbytes();
  if (kept_bytes_ + length > kKeptBytes) return;
  kept_bytes_ += length;
  staging_[length].push_back(std::move(memory));
}

// A reset() of the collective voids its memory.
void TensorCollective::drop_void_staging() {
  if (std::exchange(resets_, ranks_.resets()) == ranks_.resets()) return;
  staging_.clear();
  kept_bytes_ = 0;
}

TensorCollective::Work TensorCollective::prepare(const at::Tensor& tensor, Reduction reduction,
                                                 const OperationName& name) {
  check_target(tensor, "all_reduce");
  check_type(tensor, reduction);
  drop_void_staging();
  Work launched;
  launched.tensor_ = tensor.detach();
  launched.row_ = plain(tensor);
  launched.numbers_ =
      (tensor.is_complex() ? at::view_as_real(launched.row_) : launched.row_).view({-1});
  launched.reduction_ = reduction;
  launched.name_ = name;
  launched.resets_ = resets_;
  return launched;
}

// False if all are launched.
bool TensorCollective::launch_piece(Work& launched) {
  const std::int64_t left = launched.numbers_.numel() - launched.launched_;
  if (left == 0) return false;
  const auto most = static_cast<std::int64_t>(kPieceBytes / launched.numbers_.itemsize());
  const at::Tensor part = launched.numbers_.narrow(0, launched.launched_, std::min(most, left));
  const at::Tensor memory = take_staging(part.nbytes());
  const at::Tensor sent = staged(memory, part);
  sent.copy_(part);
  Flat flat = flat_of(sent);
  flat.name = launched.name_;
  launched.pieces_.push_back(
      {memory, sent, launched.launched_, launch(launched, flat, launched.launched_)});
  launched.launched_ += part.numel();
  return true;
}

// The flat is a piece of a tensor whose rows lie in the order of their ranks.
Ticket TensorCollective::launch(const Work& launched, Flat flat, std::int64_t begin) {
  if (!launched.part_.defined()) return ranks_.launch(flat, launched.reduction_);
  const auto numbers = static_cast<std::size_t>(launched.part_.numel());
  const auto before = static_cast<std::size_t>(begin);
  std::vector<Part> parts;
  for (int rank = 0; rank < ranks_.world_size(); ++rank) {
    const std::size_t first = static_cast<std::size_t>(rank) * numbers;
    const std::size_t from = std::max(first, before);
    const std::size_t to = std::min(first + numbers, before + flat.count);
    if (from < to) parts.push_back({rank, from - before, to - before});
  }
  return ranks_.launch_reduce_scatter(flat, parts, launched.reduction_);
}

void TensorCollective::wait_for_piece(Work& launched) {
  auto& [memory, staged, begin, ticket] = launched.pieces_.front();
  ranks_.wait(ticket);
  const bool scatters = launched.part_.defined();
  const at::Tensor& results = scatters ? launched.part_ : launched.numbers_;
  const std::int64_t first = scatters ? ranks_.rank() * results.numel() : 0;
  const std::int64_t from = std::max(first, begin);
  const std::int64_t length = std::min(first + results.numel(), begin + staged.numel()) - from;
  if (length > 0)
    results.narrow(0, from - first, length).copy_(staged.narrow(0, from - begin, length));
  keep_staging(std::move(memory));
  launched.pieces_.pop_front();
}

TensorCollective::Work TensorCollective::launch_all_reduce(const at::Tensor& tensor,
                                                           Reduction reduction,
                                                           const OperationName& name) {
  const at::NoGradGuard no_grad;
  Work launched = prepare(tensor, reduction, name);
  while (launch_piece(launched)) {
  }
  return launched;
}

void TensorCollective::wait(Work& launched) {
  if (!launched.tensor_.defined()) return;
  if (launched.resets_ != ranks_.resets())
    throw CollectiveError("wait: a reset() since has given this all_reduce up");
  const at::NoGradGuard no_grad;
  while (!launched.pieces_.empty()) wait_for_piece(launched);
  if (!is_plain(launched.tensor_)) launched.tensor_.copy_(launched.row_);
  launched = Work();
}

void TensorCollective::all_reduce(const at::Tensor& tensor, Reduction reduction,
                                  const OperationName& name) {
  const at::NoGradGuard no_grad;
  Work launched = prepare(tensor, reduction, name);
  launch_and_take_all(launched);
  wait(launched);
}

// A large tensor travels in pieces, few at a time.
void TensorCollective::launch_and_take_all(Work& launched) {
  while (launch_piece(launched)) {
    if (launched.pieces_.size() == kPiecesUnderWay) wait_for_piece(launched);
  }
  while (!launched.pieces_.empty()) wait_for_piece(launched);
}

void TensorCollective::require_alike(const at::Tensor& tensor) {
  const std::string mine = description(tensor);
  const auto all = ranks_.all_gather_bytes(std::as_bytes(std::span(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    if (theirs != mine)
      throw CollectiveError(fmt::format("all_gather: rank {} brings {}, rank {} brings {}",
                                        ranks_.rank(), mine, rank, theirs));
  }
}

TensorCollective::GatheredPiece TensorCollective::launch_gather(const at::Tensor& bytes,
                                                                std::int64_t begin,
                                                                const OperationName& name) {
  const std::int64_t world = ranks_.world_size();
  const std::int64_t most = static_cast<std::int64_t>(kPieceBytes) / world / kRowUnit * kRowUnit;
  const std::int64_t length = std::min(bytes.numel() - begin, std::max(most, kRowUnit));
  at::Tensor memory = take_staging(static_cast<std::size_t>(world * length));
  const at::Tensor rows = memory.narrow(0, 0, world * length).view({world, length});
  rows[ranks_.rank()].copy_(bytes.narrow(0, begin, length));
  const auto row = static_cast<std::size_t>(length);
  std::vector<Part> parts;
  for (int rank = 0; rank < world; ++rank) {
    const std::size_t first = static_cast<std::size_t>(rank) * row;
    parts.push_back({rank, first, first + row});
  }
  return {std::move(memory), rows, begin, ranks_.launch_all_gather(bytes_of(rows, name), parts)};
}

void TensorCollective::take_gathered(GatheredPiece piece, const std::vector<at::Tensor>& gathered) {
  ranks_.wait(piece.ticket);
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const at::Tensor row = piece.rows[static_cast<std::int64_t>(rank)];
    in_bytes(gathered[rank]).narrow(0, piece.begin, row.numel()).copy_(row);
  }
  keep_staging(std::move(piece.memory));
}

std::vector<at::Tensor> TensorCollective::all_gather(const at::Tensor& tensor,
                                                     const OperationName& name) {
  check_device(tensor, "all_gather");
  require_alike(tensor);
  const at::NoGradGuard no_grad;
  drop_void_staging();
  const at::Tensor own = plain(tensor);
  std::vector<at::Tensor> gathered;
  gathered.reserve(static_cast<std::size_t>(ranks_.world_size()));
  for (int rank = 0; rank < ranks_.world_size(); ++rank) gathered.push_back(at::empty_like(own));
  if (own.numel() == 0) return gathered;
  const at::Tensor bytes = in_bytes(own);
  std::deque<GatheredPiece> pieces;
  const auto take_first = [&] {
    take_gathered(std::move(pieces.front()), gathered);
    pieces.pop_front();
  };
  for (std::int64_t begin = 0; begin < bytes.numel();) {
    pieces.push_back(launch_gather(bytes, begin, name));
    begin += pieces.back().rows.size(1);
    if (pieces.size() == kPiecesUnderWay) take_first();
  }
  while (!pieces.empty()) take_first();
  return gathered;
}

at::Tensor TensorCollective::reduce_scatter(const at::Tensor& tensor, Reduction reduction,
                                            const OperationName& name) {
  const std::int64_t ranks = ranks_.world_size();
  if (tensor.dim() == 0 || tensor.size(0) % ranks != 0)
    refuse("reduce_scatter",
           fmt::format("{} cannot be cut into {} parts of rows", description(tensor), ranks));
  const at::NoGradGuard no_grad;
  Work launched = prepare(plain(tensor), reduction, name);
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] /= ranks;
  at::Tensor result = at::empty(sizes, launched.row_.options());
  launched.part_ = (result.is_complex() ? at::view_as_real(result) : result).view({-1});
  launch_and_take_all(launched);
  return result;
}

void TensorCollective::broadcast(const at::Tensor& tensor, int root, const OperationName& name) {
  if (root < 0 || root >= ranks_.world_size())
    refuse("broadcast", fmt::format("there is no rank {} among {}", root, ranks_.world_size()));
  const bool gets = root != ranks_.rank();
  gets ? check_target(tensor, "broadcast") : check_device(tensor, "broadcast");
  const at::NoGradGuard no_grad;
  const at::Tensor row = plain(tensor);
  ranks_.broadcast(bytes_of(row, name), root);
  if (gets && !is_plain(tensor)) tensor.detach().copy_(row);
}

void TensorCollective::send(const at::Tensor& tensor, int to, const OperationName& name) {
  check_device(tensor, "send");
  check_peer(to, "send");
  ranks_.send(bytes_of(plain(tensor), name), to);
}

void TensorCollective::receive(const at::Tensor& tensor, int from, const OperationName& name) {
  check_target(tensor, "receive");
  check_peer(from, "receive");
  const at::NoGradGuard no_grad;
  const at::Tensor row = plain(tensor);
  ranks_.receive(bytes_of(row, name), from);
  if (!is_plain(tensor)) tensor.detach().copy_(row);
}

}  // namespace ddprun
