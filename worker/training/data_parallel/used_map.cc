#include "worker/training/data_parallel/used_map.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/assert.h"
#include "worker/training/tensors/summable.h"

namespace ddprun::worker {
namespace {

at::Tensor over(std::vector<std::int32_t>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kInt);
}

}  // namespace

UsedMap::UsedMap(std::size_t parameters, at::Device device, Collective& collective)
    : collective_(collective), used_(parameters, 0) {
  summed_ = allocate_tensor(static_cast<std::int64_t>(parameters),
                            at::TensorOptions(at::kInt).device(device), collective);
}

void UsedMap::launch_sum() {
  DDPRUN_ASSERT(!under_way_);
  const at::NoGradGuard no_grad;
  // CUDA takes pageable memory before the call returns. The host waits for no kernel (CUDA runtime
  // API, "API synchronization behavior").
  summed_.copy_(over(used_), /*non_blocking=*/true);
  Flat flat = flat_of(summed_);
  flat.name = "used parameters";
  under_way_ = collective_.launch_sum(flat);
}

void UsedMap::finish() {
  if (!under_way_) return;
  const at::NoGradGuard no_grad;
  collective_.wait(*under_way_);
  under_way_.reset();
  // All marks are there already: on CUDA the host need not wait for the sum.
  if (std::ranges::find(used_, 0) == used_.end()) return;
  over(used_).copy_(summed_);
}

void UsedMap::clear() {
  DDPRUN_ASSERT(!under_way_);
  std::ranges::fill(used_, 0);
}

void UsedMap::drop_sum() {
  under_way_.reset();
  clear();
}

}  // namespace ddprun::worker
