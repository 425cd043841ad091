#include "worker/training/tensors/sparse_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace ddprun::worker {
namespace {

// The header of a rank's part: dimensions that are indexed, dimensions of each value, values.
using Header = std::array<std::int64_t, 3>;

std::vector<Header> gather_headers(const at::Tensor& mine, Collective& collective) {
  const Header header{mine.sparse_dim(), mine.dense_dim(), mine._nnz()};
  std::vector<Header> headers;
  for (const auto& blob : collective.all_gather_bytes(std::as_bytes(std::span(header)))) {
    Header theirs{};
    if (blob.size() == sizeof theirs) std::memcpy(theirs.data(), blob.data(), sizeof theirs);
    if (theirs[0] != header[0] || theirs[1] != header[1]) {
      throw CollectiveError(fmt::format(
          "sum of a sparse gradient: this rank's has {} sparse and {} dense dimensions, another "
          "rank's {} and {}: the ranks do not run the same model",
          header[0], header[1], theirs[0], theirs[1]));
    }
    headers.push_back(theirs);
  }
  return headers;
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

// Fills `tensors`, one of each rank, contiguous and in host memory, with the ranks' numbers. This
// rank's is filled already. A gather takes so much at a time, so it goes in rounds.
void gather_into(std::vector<at::Tensor>& tensors, Collective& collective) {
  const auto mine = bytes_of(tensors[static_cast<std::size_t>(collective.rank())]);
  std::size_t longest = 0;
  for (const at::Tensor& tensor : tensors) longest = std::max(longest, tensor.nbytes());
  for (std::size_t done = 0; done < longest; done += Collective::kGatherBytesMax) {
    const auto rest = mine.subspan(std::min(done, mine.size()));
    const auto blobs =
        collective.all_gather_bytes(rest.first(std::min(rest.size(), Collective::kGatherBytesMax)));
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      const std::size_t size = tensors[rank].nbytes();
      const std::size_t expected =
          std::min(size - std::min(done, size), Collective::kGatherBytesMax);
      if (blobs[rank].size() != expected) throw CollectiveError("ranks disagree on what they do");
      if (expected == 0) continue;
      std::memcpy(static_cast<std::byte*>(tensors[rank].data_ptr()) + done, blobs[rank].data(),
                  expected);
    }
  }
}

// The tensors of all ranks, by rank: like `mine`, but with their own number of values along `dim`.
std::vector<at::Tensor> gather_tensors(const at::Tensor& mine, std::int64_t dim,
                                       const std::vector<Header>& headers, Collective& collective) {
  const at::Tensor here = mine.cpu().contiguous();
  std::vector<at::Tensor> tensors;
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    auto sizes = here.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = headers[rank][2];
    const bool own = rank == static_cast<std::size_t>(collective.rank());
    tensors.push_back(own ? here : at::empty(sizes, here.options()));
  }
  gather_into(tensors, collective);
  return tensors;
}

}  // namespace

at::Tensor sum_sparse(const at::Tensor& mine, Collective& collective) {
  const at::NoGradGuard no_grad;
  at::Tensor input = mine.coalesce();
  if (collective.world_size() == 1) return input;
  const auto headers = gather_headers(input, collective);
  const auto indices = gather_tensors(input.indices(), 1, headers, collective);
  const auto values = gather_tensors(input.values(), 0, headers, collective);
  at::Tensor sum = at::sparse_coo_tensor(indices[0], values[0], input.sizes());
  for (std::size_t rank = 1; rank < headers.size(); ++rank) {
    sum += at::sparse_coo_tensor(indices[rank], values[rank], input.sizes());
  }
  return sum.coalesce().to(mine.device());
}

}  // namespace ddprun::worker
