#include "worker/collective/nccl/nccl_collective.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "worker/collective/nccl/nccl_join.h"

namespace ddprun::worker {
namespace {

// LibTorch keeps what tensors have freed. It refuses to empty that while a graph is captured.
void empty_cache() {
  try {
    c10::cuda::CUDACachingAllocator::emptyCache();
  } catch (const c10::Error& refused) {
    log::debug(fmt::format("LibTorch keeps its cache: {}", refused.what_without_backtrace()));
  }
}

// Streams come from a pool that all of the process share.
GpuProgram torch_program(int gpu) {
  const auto device = static_cast<c10::DeviceIndex>(gpu);
  return {.make =
              [device] {
                return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device).stream();
              },
          .current = [device] { return c10::cuda::getCurrentCUDAStream(device).stream(); },
          .give_back = empty_cache};
}

}  // namespace

Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& job, Exchange& exchange,
                                              std::unique_ptr<DesyncBoard> board) {
  return join_nccl_on({.job = job,
                       .program = torch_program(job.gpu),
                       .optional = find_nccl_optional(),
                       .program_on = torch_program},
                      exchange, std::move(board));
}

std::string gpu_id(int gpu) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, gpu) != cudaSuccess) return fmt::format("GPU {}", gpu);
  std::string id;
  for (const char byte : properties.uuid.bytes)
    id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return id;
}

}  // namespace ddprun::worker
