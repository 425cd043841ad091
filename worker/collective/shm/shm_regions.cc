#include "worker/collective/shm/shm_regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "worker/collective/shm/shm_setup.h"

namespace ddprun::worker {
namespace {

constexpr const char* kPurpose = "sums";

// Sums of slices below this size got slower with huge pages, those above faster.
constexpr std::size_t kHugeSliceBytes = 2 * kHugePageBytes;

// A large slice starts at a multiple of the huge page, so that the kernel can use huge pages. A
// small one would waste most of such a page.
std::size_t slice_bytes_for(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1),
                  bytes < kHugeSliceBytes ? kPageBytes : kHugePageBytes);
}

// A switch, so that the compiler finds a reduction that has no word.
const char* kind_of_sum(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "adds";
    case Reduction::kWideSum:
      return "adds in 32 bits";
    case Reduction::kAverage:
      return "averages";
    case Reduction::kMin:
      return "takes the least of";
    case Reduction::kMax:
      return "takes the greatest of";
  }
  return "does something of another version with";
}

const char* deed_of(const SumSlot& sum) {
  switch (sum.sharing) {
    case Sharing::kAllGather:
      return "gives parts of";
    case Sharing::kAllToAll:
      return "gives others";
    case Sharing::kAllReduce:
    case Sharing::kReduceScatter:
      break;
  }
  return kind_of_sum(sum.reduction);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const std::vector<std::byte>& blob) {
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

}  // namespace

std::string describe(const SumSlot& sum) {
  return fmt::format("{} {} elements of type {} at byte {}{}{}", deed_of(sum), sum.count,
                     name_of(sum.dtype), sum.offset_bytes,
                     sum.sharing == Sharing::kReduceScatter ? ", each part for its owner" : "",
                     sum.adder == Adder::kCaller ? ", with other hosts" : "");
}

// Compares the sizes first, since the ranks map one common region. With slices of unequal size each
// rank would look for the others' gradients in the wrong place.
std::shared_ptr<std::byte> ShmRegions::allocate(std::size_t bytes) {
  const std::size_t slice = slice_bytes_for(bytes);
  const auto blobs = ranks_.all_gather_bytes(std::as_bytes(std::span(&slice, 1)));
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    std::size_t theirs = 0;
    if (blobs[peer].size() == sizeof theirs)
      std::memcpy(&theirs, blobs[peer].data(), sizeof theirs);
    if (theirs != slice) {
      const auto& own = peers_.mine().operations;
      peers_.abort(fmt::format(
          "{}: rank {} allocates {} bytes, rank {} {} bytes: they do different things, or train "
          "different models",
          own.describe(own.latest()), peers_.rank(), slice, peer, theirs));
    }
  }
  auto segment = make(slice);
  std::byte* base = segment->data();
  regions_.push_back({segment, base, slice});
  return {std::move(segment), base + slice * peers_.rank()};
}

// Rank 0 makes the segment, the others map it. Each takes the pages of its own slice: it writes
// most of them, and so they are near to it. Then all tell each other whether that worked: a failure
// on one rank must end all of them. Each that fails logs why. Throws LoggedError.
std::shared_ptr<ShmSegment> ShmRegions::make(std::size_t slice_bytes) {
  const std::size_t bytes = slice_bytes * peers_.ranks();
  Result<ShmSegment> segment = Error();
  std::string name;
  if (peers_.rank() == 0) {
    segment = ShmSegment::create(bytes, kPurpose);
    name = name_or_failure(segment);
  }
  name = text_of(ranks_.from_root(bytes_of(name), 0));
  if (name.starts_with(kFailureMark)) throw LoggedError(name.substr(1));
  if (peers_.rank() != 0) segment = ShmSegment::open(name, bytes);
  auto done = segment ? segment->reserve(slice_bytes * peers_.rank(), slice_bytes,
                                         slice_bytes >= kHugeSliceBytes, kPurpose)
                      : Result<void>(segment.error());
  const std::string failure = done ? "" : logged(done.error());
  const auto failures =
      ranks_.all_gather_bytes(bytes_of(failure).first(std::min(failure.size(), kStagingBytes)));
  for (const auto& theirs : failures) {
    if (!theirs.empty()) throw LoggedError(text_of(theirs));
  }
  // By now each rank has mapped it, and all its pages are there.
  segment->close_file();
  segment->enter_pages();
  return std::make_shared<ShmSegment>(std::move(*segment));
}

// A pointer is different in every process. Region and offset mean the same to all ranks.
SumSlot ShmRegions::describe(Flat flat, Reduction reduction) const {
  const auto* data = static_cast<const std::byte*>(flat.data);
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const Region& region = regions_[i];
    const std::byte* slice = region.base + region.slice_bytes * peers_.rank();
    if (region.segment.expired() || data < slice ||
        data + flat.bytes() > slice + region.slice_bytes) {
      continue;
    }
    return {.offset_bytes = static_cast<std::uint64_t>(data - slice),
            .count = flat.count,
            .region = static_cast<std::uint32_t>(i),
            .dtype = flat.dtype,
            .reduction = reduction};
  }
  throw CollectiveError("sum of memory that did not come from allocate()");
}

}  // namespace ddprun::worker
