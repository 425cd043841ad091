// Adds a sparse gradient over the ranks, as PyTorch with Gloo does it (ProcessGroupGloo.cpp,
// AsyncSparseAllreduceWork). Every rank gets the indices and values of all ranks, and adds them in
// rank order. So all ranks have the same bits.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

namespace ddprun::worker {

// The sum, coalesced. All ranks must call it, with tensors of the same size and dtype, and any
// number of values. Else it throws CollectiveError. `mine` stays as it is.
at::Tensor sum_sparse(const at::Tensor& mine, Collective& collective);

}  // namespace ddprun::worker
