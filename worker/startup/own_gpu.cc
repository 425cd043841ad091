#include "worker/startup/own_gpu.h"

#include <ddprun/process.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "worker/collective/nccl/nccl_collective.h"
#include "worker/startup/init_method/own_address.h"

namespace ddprun::worker {
namespace {

// Ranks of one host for NCCL. Two ranks may share a GPU on purpose: NCCL takes them for ranks of
// two hosts if NCCL_HOSTID says so.
std::string host_for_nccl() {
  const char* told = std::getenv("NCCL_HOSTID");  // NOLINT(concurrency-mt-unsafe): bootstrap()
  return told == nullptr || *told == 0 ? this_host().name : told;
}

}  // namespace

Result<int> own_gpu(GpuQuestion question) {
  if (std::string why = why_no_gpu(); !why.empty())
    return Error(ErrorCode::kInvalidArgument, std::move(why));
  question.visible = gpu_count();
  return choose_gpu(question);
}

Result<std::string> why_no_gpus(int rank, const Result<int>& gpu, Exchange& exchange) {
  DeviceClaim mine{.host = host_for_nccl()};
  if (gpu) {
    mine.gpu = gpu_id(*gpu);
  } else {
    mine.why = gpu.error().message();
  }
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  const auto texts = exchange.gather(rank, encode(mine));
  if (!texts) return texts.error();
  std::vector<DeviceClaim> claims;
  for (const std::string& text : *texts) claims.push_back(decode_claim(text));
  return why_no_gpus(claims);
}

}  // namespace ddprun::worker
