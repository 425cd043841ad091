#include "worker/training/zero/owned_sums.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "worker/collective/kernels/ring_order.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/tensor_verbs.h"

namespace ddprun::worker {
namespace {

// So many numbers are added at once: they stay in the cache.
constexpr std::int64_t kBlock = std::int64_t{1} << 15;

std::int64_t numbers_of(int owner, const std::vector<OwnedRange>& ranges) {
  std::int64_t numbers = 0;
  for (const OwnedRange& range : ranges) {
    if (range.owner == owner) numbers += range.end - range.begin;
  }
  return numbers;
}

}  // namespace

void OwnedSums::sum(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
                    const at::Tensor& factor) {
  if (ranks_.world_size() == 1) return;
  if (ranks_.memory_of(flat_of(buffer), ranks_.rank()) != nullptr)
    sum_shared(buffer, ranges, factor);
  else
    sum_sent(buffer, ranges, factor);
}

void OwnedSums::sum_shared(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
                           const at::Tensor& factor) {
  std::vector<at::Tensor> buffers;
  for (int rank = 0; rank < ranks_.world_size(); ++rank) {
    std::byte* const memory = ranks_.memory_of(flat_of(buffer), rank);
    buffers.push_back(at::from_blob(memory, buffer.sizes(), buffer.options()));
  }
  ranks_.barrier();  // all buckets are full
  for (const OwnedRange& range : ranges) {
    if (range.owner != ranks_.rank()) continue;
    Parts parts;
    for (const at::Tensor& theirs : buffers)
      parts.push_back(theirs.narrow(0, range.begin, range.end - range.begin));
    add(buffer, range, parts, factor);
  }
  ranks_.barrier();  // nobody reads this rank's bucket any more
  bytes_ += static_cast<std::uint64_t>(numbers_of(ranks_.rank(), ranges) * buffer.element_size()) *
            static_cast<std::uint64_t>(ranks_.world_size() - 1);
}

// By rank, what it has of this rank's ranges, one after the other. Pairs of ranks meet in one order
// on all ranks, so nobody waits in a circle.
std::vector<at::Tensor> OwnedSums::exchange(const at::Tensor& buffer,
                                            const std::vector<OwnedRange>& ranges) {
  TensorVerbs verbs(ranks_);
  const int me = ranks_.rank();
  std::vector<at::Tensor> got(static_cast<std::size_t>(ranks_.world_size()));
  const auto send = [&](int to) {
    std::vector<at::Tensor> parts;
    for (const OwnedRange& range : ranges) {
      if (range.owner == to)
        parts.push_back(buffer.narrow(0, range.begin, range.end - range.begin));
    }
    if (numbers_of(to, ranges) > 0) verbs.send(at::cat(parts), to, "gradients of the owner");
  };
  const auto receive = [&](int from) {
    at::Tensor& theirs = got[static_cast<std::size_t>(from)];
    theirs = at::empty({numbers_of(me, ranges)}, buffer.options());
    if (theirs.numel() > 0) verbs.receive(theirs, from, "gradients of the owner");
    bytes_ += theirs.nbytes();
  };
  for (int low = 0; low < ranks_.world_size(); ++low) {
    for (int high = low + 1; high < ranks_.world_size(); ++high) {
      if (me == low) {
        send(high);
        receive(high);
      } else if (me == high) {
        receive(low);
        send(low);
      }
    }
  }
  return got;
}

void OwnedSums::sum_sent(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
                         const at::Tensor& factor) {
  const std::vector<at::Tensor> got = exchange(buffer, ranges);
  std::int64_t offset = 0;
  for (const OwnedRange& range : ranges) {
    if (range.owner != ranks_.rank()) continue;
    const std::int64_t length = range.end - range.begin;
    Parts parts;
    for (const at::Tensor& theirs : got) {
      parts.push_back(theirs.defined() ? theirs.narrow(0, offset, length)
                                       : buffer.narrow(0, range.begin, length));
    }
    add(buffer, range, parts, factor);
    offset += length;
  }
}

// Chunk c of the bucket is x[c] + (x[c+1] + (… + x[c-1])): the innermost pair comes first.
void OwnedSums::add(const at::Tensor& buffer, const OwnedRange& range, const Parts& parts,
                    const at::Tensor& factor) {
  const std::size_t world = parts.size();
  const auto element = static_cast<std::size_t>(buffer.element_size());
  const auto bytes = static_cast<std::size_t>(buffer.numel()) * element;
  for (std::size_t c = 0; c < world; ++c) {
    const Chunk chunk = ring_chunk(bytes, element, world, c);
    const auto begin = std::max(range.begin, static_cast<std::int64_t>(chunk.begin / element));
    const auto end = std::min(range.end, static_cast<std::int64_t>(chunk.end / element));
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t length = std::min(kBlock, end - at);
      const auto part = [&](std::size_t k) {
        const at::Tensor numbers = parts[(c + k) % world].narrow(0, at - range.begin, length);
        return factor.defined() ? numbers.mul(factor) : numbers;
      };
      at::Tensor sum = part(world - 2).add(part(world - 1));
      for (std::size_t k = world - 2; k-- > 0;) sum.add_(part(k));
      buffer.narrow(0, at, length).copy_(sum);
    }
  }
}

}  // namespace ddprun::worker
