#include "worker/collective/nccl/nccl_join.h"

#include <ddprun/process.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "worker/collective/nccl/nccl_ranks.h"

namespace ddprun::worker {
namespace {

// An announced text that begins so is an error line of rank 0; an id in hex never does.
constexpr char kFailureMark = '!';

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Result<ncclUniqueId> from_hex(const std::string& text) {
  ncclUniqueId id{};
  if (text.starts_with(kFailureMark)) return Error(ErrorCode::kSystem, text.substr(1));
  if (text.size() != 2 * sizeof id.internal) {
    return Error(ErrorCode::kProtocol, "rank 0 announced something that is no NCCL id");
  }
  for (std::size_t i = 0; i < sizeof id.internal; ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// Rank 0 makes the id when all ranks have arrived. ncclGetUniqueId opens a socket and waits there
// for the ranks, in a thread of its own. It should not wait for ranks that never come.
Result<ncclUniqueId> agree_on_id(const NcclJob& job, Exchange& exchange) {
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  if (job.rank != 0) {
    const auto text = exchange.hear();
    if (!text) return text.error();
    return from_hex(*text);
  }
  ncclUniqueId id{};
  const ncclResult_t made = ncclGetUniqueId(&id);
  const std::string text =
      made == ncclSuccess ? to_hex(id)
                          : fmt::format("{}NCCL id: {}", kFailureMark, ncclGetErrorString(made));
  const auto told = exchange.announce(text);
  if (!told) return told.error();
  return from_hex(text);
}

}  // namespace

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<std::unique_ptr<Collective>> join_nccl_on(const NcclParts& parts, Exchange& exchange,
                                                 std::unique_ptr<DesyncBoard> board) {
  const NcclJob& job = parts.job;
  if (std::string why = why_no_gpu(); !why.empty()) {
    return Error(ErrorCode::kInvalidArgument, std::move(why));
  }
  if (const cudaError_t set = cudaSetDevice(job.gpu); set != cudaSuccess) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("GPU {} for rank {}: {}", job.gpu, job.rank, cudaGetErrorString(set)));
  }
  const auto id = agree_on_id(job, exchange);
  if (!id) return id.error();
  try {
    auto collective = std::make_unique<NcclRanks>(parts);
    collective->form(*id, std::move(board));
    return std::unique_ptr<Collective>(std::move(collective));
  } catch (const CollectiveError& error) {
    return Error(ErrorCode::kUnavailable, error.what());
  }
}

}  // namespace ddprun::worker

namespace ddprun {

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return fmt::format("no GPU: CUDA: {}", cudaGetErrorString(status));
  return count == 0 ? "no GPU: CUDA finds none" : "";
}

}  // namespace ddprun
