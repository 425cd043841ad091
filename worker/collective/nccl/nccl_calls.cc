#include "worker/collective/nccl/nccl_calls.h"

#include "worker/collective/nccl/cuda_parts.h"

namespace ddprun::worker {
namespace {

ncclDataType_t nccl_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return ncclFloat32;
    case Dtype::kFloat64:
      return ncclFloat64;
    case Dtype::kFloat16:
      return ncclFloat16;
    case Dtype::kBFloat16:
      return ncclBfloat16;
    case Dtype::kInt32:
      return ncclInt32;
    case Dtype::kInt64:
      return ncclInt64;
    case Dtype::kInt8:
      return ncclInt8;
    case Dtype::kUInt8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kWideSum:
      return ncclSum;
    case Reduction::kAverage:
      return ncclAvg;
    case Reduction::kMin:
      return ncclMin;
    case Reduction::kMax:
      break;
  }
  return ncclMax;
}

// Elements of a flat, as NCCL's calls have them.
struct Piece {
  Piece(const Flat& flat, std::size_t begin, std::size_t end)
      : data(static_cast<std::byte*>(flat.data) + begin * size_of(flat.dtype)),
        count(end - begin),
        type(nccl_type(flat.dtype)) {}

  std::byte* data;
  std::size_t count;
  ncclDataType_t type;
};

// NCCL has no call for uneven parts. One group of calls makes one operation of them.
template <typename One, typename Call>
ncclResult_t in_a_group(const std::vector<One>& all, const Call& call) {
  const auto failed = [](ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
  };
  ncclResult_t result = ncclGroupStart();
  for (const One& one : all) {
    if (failed(result)) break;
    result = call(one);
  }
  const ncclResult_t ended = ncclGroupEnd();
  return failed(result) ? result : ended;
}

// Returns how long each rank's part is, if NCCL has a call for all of them; else 0. It takes one a
// rank, in the order of ranks, equally long, without gaps.
std::size_t equal_length(const std::vector<Part>& parts, int ranks) {
  if (parts.size() != static_cast<std::size_t>(ranks)) return 0;
  const std::size_t length = parts.front().end - parts.front().begin;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool fits = part.owner == static_cast<int>(i) && part.end - part.begin == length &&
                      part.begin == parts.front().begin + i * length;
    if (!fits) return 0;
  }
  return length;
}

ncclResult_t reduce_scatter(const Flat& flat, const LaunchRequest& request, const NcclPlace& here,
                            ncclComm_t comm) {
  const ncclRedOp_t reduction = nccl_operation(request.reduction);
  if (equal_length(request.parts, here.ranks) != 0) {
    const Piece all(flat, request.parts.front().begin, request.parts.back().end);
    const Part& part = request.parts[static_cast<std::size_t>(here.rank)];
    const Piece own(flat, part.begin, part.end);
    return ncclReduceScatter(all.data, own.data, own.count, own.type, reduction, comm, here.stream);
  }
  return in_a_group(request.parts, [&](const Part& part) {
    const Piece piece(flat, part.begin, part.end);
    return ncclReduce(piece.data, piece.data, piece.count, piece.type, reduction, part.owner, comm,
                      here.stream);
  });
}

ncclResult_t all_gather(const Flat& flat, const LaunchRequest& request, const NcclPlace& here,
                        ncclComm_t comm) {
  if (equal_length(request.parts, here.ranks) != 0) {
    const Piece all(flat, request.parts.front().begin, request.parts.back().end);
    const Part& part = request.parts[static_cast<std::size_t>(here.rank)];
    const Piece own(flat, part.begin, part.end);
    return ncclAllGather(own.data, all.data, own.count, own.type, comm, here.stream);
  }
  return in_a_group(request.parts, [&](const Part& part) {
    const Piece piece(flat, part.begin, part.end);
    return ncclBroadcast(piece.data, piece.data, piece.count, piece.type, part.owner, comm,
                         here.stream);
  });
}

// A rank's transfers to itself are plain copies.
ncclResult_t all_to_all(const Flat& flat, const std::vector<Transfer>& transfers,
                        const NcclPlace& here, ncclComm_t comm) {
  const auto target_of = [&](const Transfer& one) {
    return Piece(flat, one.target, one.target + (one.end - one.begin));
  };
  for (const auto& one : transfers) {
    if (one.from != here.rank || one.to != here.rank) continue;
    const Piece from(flat, one.begin, one.end);
    check_cuda(cudaMemcpyAsync(target_of(one).data, from.data, from.count * size_of(flat.dtype),
                               cudaMemcpyDeviceToDevice, here.stream),
               "copy on the GPU");
  }
  return in_a_group(transfers, [&](const Transfer& one) {
    if (one.from == one.to) return ncclSuccess;
    if (one.from == here.rank) {
      const Piece piece(flat, one.begin, one.end);
      return ncclSend(piece.data, piece.count, piece.type, one.to, comm, here.stream);
    }
    if (one.to != here.rank) return ncclSuccess;
    const Piece target = target_of(one);
    return ncclRecv(target.data, target.count, target.type, one.from, comm, here.stream);
  });
}

}  // namespace

const char* doing(const LaunchRequest& request) {
  switch (request.sharing) {
    case Sharing::kAllReduce:
      return "launch of a sum";
    case Sharing::kReduceScatter:
      return "launch of a reduce-scatter";
    case Sharing::kAllGather:
      return "launch of an all-gather";
    case Sharing::kAllToAll:
      break;
  }
  return "launch of an all-to-all";
}

ncclResult_t call_nccl_for(const Flat& flat, const LaunchRequest& request, const NcclPlace& here,
                           ncclComm_t comm) {
  switch (request.sharing) {
    case Sharing::kAllReduce:
      return ncclAllReduce(flat.data, flat.data, flat.count, nccl_type(flat.dtype),
                           nccl_operation(request.reduction), comm, here.stream);
    case Sharing::kReduceScatter:
      return reduce_scatter(flat, request, here, comm);
    case Sharing::kAllGather:
      return all_gather(flat, request, here, comm);
    case Sharing::kAllToAll:
      break;
  }
  return all_to_all(flat, request.transfers, here, comm);
}

}  // namespace ddprun::worker
