// Takes the place of nccl_collective.cc if the torch wheel came without NCCL. Programs that ask for
// a GPU then get an error instead of a link failure.
#include <ddprun/process.h>

#include "worker/collective/nccl/nccl_collective.h"

namespace ddprun::worker {

Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& /*job*/, Exchange& /*exchange*/,
                                              std::unique_ptr<DesyncBoard> /*board*/) {
  return Error(ErrorCode::kInvalidArgument, why_no_gpu());
}

int gpu_count() { return 0; }

std::string gpu_id(int /*gpu*/) { return {}; }

}  // namespace ddprun::worker

namespace ddprun {

std::string why_no_gpu() { return "this build has no NCCL: its torch came without CUDA"; }

}  // namespace ddprun
