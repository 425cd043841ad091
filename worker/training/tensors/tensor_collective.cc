#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/row_note.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/tensor_plan.h"
#include "worker/training/tensors/tensor_rows.h"

namespace ddprun {

using namespace worker;

namespace {

constexpr std::size_t kSmallestPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kPiecesUnderWay = 2;
// Memory for tensors to come.
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

std::string type_name(const at::Tensor& tensor) { return c10::toString(tensor.scalar_type()); }

void check_type(const at::Tensor& tensor, Reduction reduction, const char* operation) {
  const std::string type = type_name(tensor);
  if (!reducible(tensor.scalar_type()))
    refuse_tensor(operation, type + " cannot be reduced: give it another type");
  const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (tensor.is_complex() && compares)
    refuse_tensor(operation, type + " has no order: it can be summed and averaged");
  const bool divides = tensor.is_floating_point() || tensor.is_complex();
  if (reduction == Reduction::kAverage && !divides)
    refuse_tensor(
        operation,
        fmt::format("the average of {} is no {}: give it a floating-point type", type, type));
}

}  // namespace

void TensorCollective::check_device(const at::Tensor& tensor, const char* operation) const {
  const bool cuda = ranks_.device() == Device::kCuda;
  if (tensor.is_cuda() != cuda || (!cuda && !tensor.is_cpu()))
    refuse_tensor(operation,
                  fmt::format("the tensor lies on {}, and {} has ranks on {}",
                              tensor.device().str(), ranks_.name(), cuda ? "GPUs" : "CPUs"));
  if (tensor.layout() != at::kStrided)
    refuse_tensor(operation, "the tensor is sparse: give its values");
}

// One that is written.
void TensorCollective::check_target(const at::Tensor& tensor, const char* operation) const {
  check_device(tensor, operation);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    refuse_tensor(operation, "elements of the tensor share memory (expand()): give a clone()");
}

// `rows` of an all-to-all: together all rows of the tensor.
void TensorCollective::check_counts(const at::Tensor& tensor,
                                    std::span<const std::int64_t> rows) const {
  const auto refuse = [&](const std::string& why) { refuse_tensor("all_to_all", why); };
  if (tensor.dim() == 0) refuse("a number has no rows: give it a dimension");
  if (rows.size() != static_cast<std::size_t>(ranks_.world_size()))
    refuse(
        fmt::format("{} counts of rows, and there are {} ranks", rows.size(), ranks_.world_size()));
  std::int64_t all = 0;
  for (const std::int64_t count : rows) {
    if (count < 0 || count > tensor.size(0) - all)
      refuse(fmt::format("rows [{}] are not those of {}", fmt::join(rows, ", "),
                         description_of(tensor)));
    all += count;
  }
  if (all != tensor.size(0))
    refuse(
        fmt::format("rows [{}] are not all of {}", fmt::join(rows, ", "), description_of(tensor)));
}

void TensorCollective::check_peer(int peer, const char* operation) const {
  if (peer >= 0 && peer < ranks_.world_size() && peer != ranks_.rank()) return;
  refuse_tensor(operation, fmt::format("rank {} cannot be the peer of rank {} among {}", peer,
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

void TensorCollective::check_result(const at::Tensor& result, const at::Tensor& tensor,
                                    std::int64_t elements, const char* operation) const {
  check_target(result, operation);
  if (result.scalar_type() != tensor.scalar_type() || result.numel() != elements)
    refuse_tensor(operation, fmt::format("the result is {}, and {} elements of {} come",
                                         description_of(result), elements, type_name(tensor)));
}

void TensorCollective::check_rows(const at::Tensor& tensor, const char* operation) const {
  if (tensor.dim() > 0 && tensor.size(0) % ranks_.world_size() == 0) return;
  refuse_tensor(operation, fmt::format("{} cannot be cut into {} parts of rows",
                                       description_of(tensor), ranks_.world_size()));
}

TensorCollective::Work TensorCollective::start(const Plan& plan) {
  Work launched;
  launched.state_ = std::make_unique<Work::State>();
  launched.state_->operation = plan.operation;
  launched.state_->finish = plan.finish;
  launched.state_->resets = resets_;
  for (std::int64_t piece = 0; piece < plan.pieces; ++piece)
    launched.state_->pieces.push_back(plan.launch(piece));
  return launched;
}

// A large tensor travels in pieces, few at a time.
void TensorCollective::run(const Plan& plan) {
  std::deque<Work::Piece> under_way;
  for (std::int64_t piece = 0; piece < plan.pieces; ++piece) {
    under_way.push_back(plan.launch(piece));
    if (under_way.size() == kPiecesUnderWay) wait_for_first(under_way);
  }
  while (!under_way.empty()) wait_for_first(under_way);
  if (plan.finish) plan.finish();
}

void TensorCollective::wait_for_first(std::deque<Work::Piece>& under_way) {
  auto& [memory, ticket, take] = under_way.front();
  ranks_.wait(ticket);
  take();
  keep_staging(std::move(memory));
  under_way.pop_front();
}

void TensorCollective::wait(Work& launched) {
  if (!launched.state_) return;
  Work::State& state = *launched.state_;
  if (state.resets != ranks_.resets())
    throw CollectiveError(
        fmt::format("wait: a reset() since has given this {} up", state.operation));
  const at::NoGradGuard no_grad;
  while (!state.pieces.empty()) wait_for_first(state.pieces);
  if (state.finish) state.finish();
  launched = Work();
}

void TensorCollective::all_reduce(const at::Tensor& tensor, Reduction reduction,
                                  const OperationName& name) {
  check_target(tensor, "all_reduce");
  check_type(tensor, reduction, "all_reduce");
  const at::NoGradGuard no_grad;
  drop_void_staging();
  run(plan_all_reduce(tensor, reduction, name));
}

TensorCollective::Work TensorCollective::launch_all_reduce(const at::Tensor& tensor,
                                                           Reduction reduction,
                                                           const OperationName& name) {
  check_target(tensor, "all_reduce");
  check_type(tensor, reduction, "all_reduce");
  const at::NoGradGuard no_grad;
  drop_void_staging();
  return start(plan_all_reduce(tensor, reduction, name));
}

void TensorCollective::require_alike(const at::Tensor& tensor) {
  const std::string mine = description_of(tensor);
  const auto all = ranks_.all_gather_bytes(std::as_bytes(std::span(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    if (theirs != mine)
      throw CollectiveError(fmt::format("all_gather: rank {} brings {}, rank {} brings {}",
                                        ranks_.rank(), mine, rank, theirs));
  }
}

std::vector<at::Tensor> TensorCollective::all_gather(const at::Tensor& tensor,
                                                     const OperationName& name) {
  check_device(tensor, "all_gather");
  require_alike(tensor);
  const at::NoGradGuard no_grad;
  drop_void_staging();
  std::vector<at::Tensor> gathered;
  gathered.reserve(static_cast<std::size_t>(ranks_.world_size()));
  for (int rank = 0; rank < ranks_.world_size(); ++rank)
    gathered.push_back(at::empty(tensor.sizes(), tensor.options()));
  run(plan_all_gather(gathered, tensor, name));
  return gathered;
}

TensorCollective::Work TensorCollective::launch_all_gather(const at::Tensor& result,
                                                           const at::Tensor& tensor,
                                                           const OperationName& name) {
  check_device(tensor, "all_gather");
  check_result(result, tensor, ranks_.world_size() * tensor.numel(), "all_gather");
  const at::NoGradGuard no_grad;
  drop_void_staging();
  return start(plan_all_gather_into(result, tensor, name));
}

at::Tensor TensorCollective::reduce_scatter(const at::Tensor& tensor, Reduction reduction,
                                            const OperationName& name) {
  check_rows(tensor, "reduce_scatter");
  check_device(tensor, "reduce_scatter");
  check_type(tensor, reduction, "reduce_scatter");
  const at::NoGradGuard no_grad;
  drop_void_staging();
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] /= ranks_.world_size();
  at::Tensor result = at::empty(sizes, tensor.options());
  run(plan_reduce_scatter(result, tensor, reduction, name));
  return result;
}

TensorCollective::Work TensorCollective::launch_reduce_scatter(const at::Tensor& result,
                                                               const at::Tensor& tensor,
                                                               Reduction reduction,
                                                               const OperationName& name) {
  check_rows(tensor, "reduce_scatter");
  check_device(tensor, "reduce_scatter");
  check_type(tensor, reduction, "reduce_scatter");
  check_result(result, tensor, tensor.numel() / ranks_.world_size(), "reduce_scatter");
  const at::NoGradGuard no_grad;
  drop_void_staging();
  return start(plan_reduce_scatter(result, tensor, reduction, name));
}

// Returns how many rows each rank gives to each. All know it if all give as many.
TensorCollective::Rows TensorCollective::rows_of_all(const at::Tensor& tensor,
                                                     std::span<const std::int64_t> rows,
                                                     std::int64_t wanted) {
  const std::int64_t ranks = ranks_.world_size();
  if (rows.empty()) {
    check_rows(tensor, "all_to_all");
    const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), tensor.size(0) / ranks);
    return {static_cast<std::size_t>(ranks), even};
  }
  check_counts(tensor, rows);
  const RowNote mine{
      .wanted = wanted,
      .gives = {rows.begin(), rows.end()},
      .row = fmt::format("{} [{}]", type_name(tensor), fmt::join(tensor.sizes().slice(1), ", "))};
  Rows all;
  for (RowNote& note : read_notes(ranks_.all_gather_bytes(encode(mine)), ranks_.rank()))
    all.push_back(std::move(note.gives));
  return all;
}

at::Tensor TensorCollective::all_to_all(const at::Tensor& tensor,
                                        std::span<const std::int64_t> rows,
                                        const OperationName& name) {
  check_device(tensor, "all_to_all");
  const at::NoGradGuard no_grad;
  Rows all = rows_of_all(tensor, rows, -1);
  drop_void_staging();
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = 0;
  for (const auto& from : all) sizes[0] += from[static_cast<std::size_t>(ranks_.rank())];
  at::Tensor result = at::empty(sizes, tensor.options());
  run(plan_all_to_all(result, tensor, std::move(all), name));
  return result;
}

TensorCollective::Work TensorCollective::launch_all_to_all(const at::Tensor& result,
                                                           const at::Tensor& tensor,
                                                           std::span<const std::int64_t> rows,
                                                           const OperationName& name) {
  check_device(tensor, "all_to_all");
  check_target(result, "all_to_all");
  if (tensor.dim() == 0 || result.dim() != tensor.dim() ||
      result.sizes().slice(1) != tensor.sizes().slice(1))
    refuse_tensor("all_to_all", fmt::format("the result is {}, and rows of {} come",
                                            description_of(result), description_of(tensor)));
  if (rows.empty()) check_result(result, tensor, tensor.numel(), "all_to_all");
  check_result(result, tensor, result.numel(), "all_to_all");
  const auto overlap = at::get_overlap_status(result, tensor);
  if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial)
    refuse_tensor("all_to_all", "the result shares memory with the tensor: give another one");
  const at::NoGradGuard no_grad;
  Rows all = rows_of_all(tensor, rows, result.size(0));
  drop_void_staging();
  return start(plan_all_to_all(result, tensor, std::move(all), name));
}

void TensorCollective::broadcast(const at::Tensor& tensor, int root, const OperationName& name) {
  if (root < 0 || root >= ranks_.world_size())
    refuse_tensor("broadcast",
                  fmt::format("there is no rank {} among {}", root, ranks_.world_size()));
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
