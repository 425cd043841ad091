#include "worker/collective/shm_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "proto/assert.h"
#include "worker/collective/ring_order.h"
#include "worker/collective/shm_layout.h"
#include "worker/collective/shm_meeting.h"
#include "worker/collective/shm_peers.h"
#include "worker/collective/shm_segment.h"
#include "worker/collective/sum_kernels.h"

namespace ddprun::worker {
namespace {

constexpr const char* kBucketsPurpose = "the gradient buckets";

// Sums of slices below this size got slower with huge pages, those above faster.
constexpr std::size_t kHugeSliceBytes = 2 * kHugePageBytes;

// A large slice starts at a multiple of the huge page, so that the kernel can use huge pages. A
// small one would waste most of such a page.
std::size_t slice_bytes_for(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1),
                  bytes < kHugeSliceBytes ? kPageBytes : kHugePageBytes);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const std::vector<std::byte>& blob) {
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

// Memory for sums: one slice per rank. The reference is weak: only pointers from allocate() and
// sums under way keep the mapping. Regions are never erased, since sums name them by their index.
struct Region {
  std::weak_ptr<ShmSegment> segment;
  std::byte* base = nullptr;
  std::size_t slice_bytes = 0;
};

class ShmCollective final : public Collective {
 public:
  ShmCollective(ShmSegment control, const ShmPeers::Options& options)
      : peers_(std::move(control), options) {}

  int rank() const override { return static_cast<int>(peers_.rank()); }
  int world_size() const override { return static_cast<int>(peers_.ranks()); }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "shm"; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  Ticket launch_sum(Flat flat) override;
  void progress() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override;
  void barrier() override;
  void reset() override;

  // After the barrier all ranks have mapped the control segment: nobody opens it any more.
  void complete_meeting() {
    barrier();
    peers_.control().close_file();
  }

 private:
  std::shared_ptr<ShmSegment> make_region(std::size_t slice_bytes);
  SumSlot describe(Flat flat) const;
  std::uint32_t latest(Counter RankArea::*counter) const;
  void add_chunk(Ticket ticket);
  void check_same_sum(Ticket ticket, const SumSlot& mine);
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine,
                                             std::uint32_t operation);
  std::uint32_t post(PostKind kind, std::span<const std::byte> piece, std::size_t total_bytes,
                     std::uint32_t operation);
  const PostSlot& look_at(std::size_t peer, std::uint32_t number, PostKind kind,
                          std::uint32_t operation);
  ShmPeers::Doing sum_of(Ticket ticket) const {
    return {"sum of gradients", operations_[ticket % kSumSlots]};
  }

  ShmPeers peers_;
  std::vector<Region> regions_;
  // By slot: the memory of a sum whose chunk this rank has not added yet. The caller may have
  // dropped its pointer meanwhile.
  std::array<std::shared_ptr<ShmSegment>, kSumSlots> held_;
  std::array<std::uint32_t, kSumSlots> operations_{};  // by slot: the sum's number in the ring
  Ticket launched_ = 0;
  Ticket added_ = 0;          // sums whose chunk this rank has added
  std::uint32_t posted_ = 0;  // gathers, barriers, pieces of broadcasts
};

// Compares the sizes first: the ranks map one common region, and slices of unequal size would make
// each rank look for the others' gradients in the wrong place.
std::shared_ptr<std::byte> ShmCollective::allocate(std::size_t bytes) {
  const std::size_t slice = slice_bytes_for(bytes);
  for (const auto& blob : all_gather(std::as_bytes(std::span(&slice, 1)))) {
    std::size_t theirs = 0;
    if (blob.size() == sizeof theirs) std::memcpy(&theirs, blob.data(), sizeof theirs);
    if (theirs != slice) {
      peers_.abort(
          fmt::format("ranks allocate buckets of different sizes: {} and {} bytes", slice, theirs));
    }
  }
  auto segment = make_region(slice);
  std::byte* base = segment->data();
  regions_.push_back({segment, base, slice});
  return {std::move(segment), base + slice * peers_.rank()};
}

// Rank 0 makes the segment, the others map it. Each takes the pages of its own slice: it writes most of
// them, and so they are near to it. Then all tell each other whether that worked: a failure on one rank
// must end all of them. Each that fails logs why. Throws LoggedError.
std::shared_ptr<ShmSegment> ShmCollective::make_region(std::size_t slice_bytes) {
  const std::size_t bytes = slice_bytes * peers_.ranks();
  Result<ShmSegment> segment = Error();
  std::string name;
  if (rank() == 0) {
    segment = ShmSegment::create(bytes, kBucketsPurpose);
    name = name_or_failure(segment);
  }
  name = text_of(from_root(bytes_of(name), 0));
  if (name.starts_with(kFailureMark)) throw LoggedError(name.substr(1));
  if (rank() != 0) segment = ShmSegment::open(name, bytes);
  auto done = segment ? segment->reserve(slice_bytes * peers_.rank(), slice_bytes,
                                         slice_bytes >= kHugeSliceBytes, kBucketsPurpose)
                      : Result<void>(segment.error());
  const std::string failure = done ? "" : logged(done.error());
  const auto failures =
      all_gather(bytes_of(failure).first(std::min(failure.size(), kStagingBytes)));
  for (const auto& theirs : failures) {
    if (!theirs.empty()) throw LoggedError(text_of(theirs));
  }
  // By now each rank has mapped it, and all its pages are there.
  segment->close_file();
  segment->enter_pages();
  return std::make_shared<ShmSegment>(std::move(*segment));
}

// A pointer is different in every process. Region and offset mean the same to all ranks.
SumSlot ShmCollective::describe(Flat flat) const {
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
            .dtype = flat.dtype};
  }
  throw CollectiveError("sum of memory that did not come from allocate()");
}

Ticket ShmCollective::launch_sum(Flat flat) {
  DDPRUN_ASSERT(flat.dtype != Dtype::kByte);
  const SumSlot sum = describe(flat);
  const std::uint32_t operation = peers_.mine().operations.begin(Verb::kSum, flat.bytes());
  if (launched_ - added_ >= kSumSlots) wait(launched_ - kSumSlots + 1);
  // The other ranks read our slot when they add that sum, so it can be overwritten once all have
  // added it. For the first sums the target wraps to a number below 0: reached at once.
  peers_.wait_for_all(&RankArea::summed, launched_ + 1 - kSumSlots,
                      {"sum of gradients", operation});
  peers_.mine().sums[++launched_ % kSumSlots] = sum;
  operations_[launched_ % kSumSlots] = operation;
  held_[launched_ % kSumSlots] = regions_[sum.region].segment.lock();
  advance(peers_.mine().launched, launched_);
  return launched_;
}

// Only sums that all ranks have launched: until a rank has, its gradients are not in its bucket.
void ShmCollective::progress() {
  while (added_ != launched_ && peers_.all_reached(&RankArea::launched, added_ + 1)) {
    add_chunk(added_ + 1);
  }
}

void ShmCollective::wait(Ticket ticket) {
  DDPRUN_ASSERT(reached(launched_, ticket));
  while (!reached(added_, ticket)) {
    peers_.wait_for_all(&RankArea::launched, added_ + 1, sum_of(added_ + 1));
    add_chunk(added_ + 1);
  }
  // Our chunk is done. The other chunks of our buffer are written by the other ranks.
  peers_.wait_for_all(&RankArea::summed, ticket, sum_of(ticket));
  if (launched_ - ticket < kSumSlots)  // else its slot is another one's by now
    peers_.mine().operations.end(operations_[ticket % kSumSlots]);
}

// Without this check ranks with different models would train on nonsense, silently.
void ShmCollective::check_same_sum(Ticket ticket, const SumSlot& mine) {
  for (std::size_t peer = 0; peer < peers_.ranks(); ++peer) {
    const SumSlot& theirs = peers_.area(peer).sums[ticket % kSumSlots];
    if (theirs == mine) continue;
    peers_.abort(fmt::format(
        "sum number {}: rank {} adds {} elements of type {} at byte {}, rank {} adds {} of type {} "
        "at byte {}: the ranks do not run the same model",
        ticket, peers_.rank(), mine.count, static_cast<int>(mine.dtype), mine.offset_bytes, peer,
        theirs.count, static_cast<int>(theirs.dtype), theirs.offset_bytes));
  }
}

// Adds this rank's chunk of a sum and stores it to all ranks. Call only when all have launched it.
void ShmCollective::add_chunk(Ticket ticket) {
  const SumSlot sum = peers_.mine().sums[ticket % kSumSlots];
  check_same_sum(ticket, sum);
  const std::size_t element = size_of(sum.dtype);
  const Chunk chunk = ring_chunk(sum.count * element, element, peers_.ranks(), peers_.rank());
  const Region& region = regions_[sum.region];
  // Own buffer first, then those of the next ranks in a circle: the order of ring_order.h.
  std::vector<std::byte*> buffers(peers_.ranks());
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const std::size_t owner = (peers_.rank() + k) % buffers.size();
    buffers[k] = region.base + owner * region.slice_bytes + sum.offset_bytes + chunk.begin;
  }
  sum_to_all(buffers, (chunk.end - chunk.begin) / element, sum.dtype);
  held_[ticket % kSumSlots].reset();
  added_ = ticket;
  advance(peers_.mine().summed, ticket);
}

// Puts a piece into this rank's next staging slot, where the others see it. Returns the number of
// the piece.
std::uint32_t ShmCollective::post(PostKind kind, std::span<const std::byte> piece,
                                  std::size_t total_bytes, std::uint32_t operation) {
  const std::uint32_t number = ++posted_;
  const std::uint32_t slot = number % kStagingSlots;
  // The slot was last used two pieces ago. A rank that still reads it must not be overtaken.
  peers_.wait_for_all(&RankArea::taken, number - kStagingSlots, {"wait for the others", operation});
  peers_.mine().posts[slot] = {.number = number,
                               .operation = operation,
                               .kind = kind,
                               .bytes = piece.size(),
                               .total_bytes = total_bytes};
  if (!piece.empty()) {
    std::memcpy(peers_.staging(peers_.rank(), slot), piece.data(), piece.size());
  }
  advance(peers_.mine().posted, number);
  return number;
}

// Waits for the piece that `peer` has posted under the same number. If it posted something else,
// the programs of the two ranks have taken different ways.
const PostSlot& ShmCollective::look_at(std::size_t peer, std::uint32_t number, PostKind kind,
                                       std::uint32_t operation) {
  peers_.wait_for(peer, &RankArea::posted, number,
                  {kind == PostKind::kGather ? "gather or barrier" : "broadcast", operation});
  const PostSlot& post = peers_.area(peer).posts[number % kStagingSlots];
  if (post.number != number || post.kind != kind) {
    peers_.abort(fmt::format("rank {} does {}, rank {} does {}: they do different things",
                             peers_.rank(), peers_.mine().operations.describe(operation), peer,
                             peers_.area(peer).operations.describe(post.operation)));
  }
  return post;
}

// Every rank posts, root its piece and the others nothing: so the operation numbers stay equal, and
// a rank that gathers meanwhile is found out.
void ShmCollective::broadcast(Flat flat, int root) {
  auto* data = static_cast<std::byte*>(flat.data);
  const std::size_t total = flat.bytes();
  const auto source = static_cast<std::size_t>(root);
  const std::uint32_t operation = peers_.mine().operations.begin(Verb::kBroadcast, total);
  for (std::size_t done = 0; done < total; done += kStagingBytes) {
    const std::size_t length = std::min(total - done, kStagingBytes);
    const std::span<const std::byte> piece(data + done, rank() == root ? length : 0);
    const std::uint32_t number = post(PostKind::kBroadcast, piece, total, operation);
    if (rank() != root) {
      const PostSlot& theirs = look_at(source, number, PostKind::kBroadcast, operation);
      if (theirs.bytes != length || theirs.total_bytes != total) {
        peers_.abort(fmt::format("broadcast: rank {} sends {} bytes, rank {} expects {}", root,
                                 theirs.total_bytes, rank(), total));
      }
      std::memcpy(data + done, peers_.staging(source, number % kStagingSlots), length);
    }
    advance(peers_.mine().taken, number);
  }
  peers_.mine().operations.end(operation);
}

void ShmCollective::barrier() { gather({}, peers_.mine().operations.begin(Verb::kBarrier, 0)); }

std::vector<std::vector<std::byte>> ShmCollective::all_gather(std::span<const std::byte> mine) {
  check_gather_size(mine.size());
  return gather(mine, peers_.mine().operations.begin(Verb::kGather, mine.size()));
}

std::vector<std::vector<std::byte>> ShmCollective::gather(std::span<const std::byte> mine,
                                                          std::uint32_t operation) {
  const std::uint32_t number = post(PostKind::kGather, mine, mine.size(), operation);
  std::vector<std::vector<std::byte>> blobs(peers_.ranks());
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    const PostSlot& theirs = look_at(peer, number, PostKind::kGather, operation);
    const std::byte* piece = peers_.staging(peer, number % kStagingSlots);
    blobs[peer].assign(piece, piece + theirs.bytes);
  }
  advance(peers_.mine().taken, number);
  peers_.mine().operations.end(operation);
  return blobs;
}

// The latest of all ranks' counters.
std::uint32_t ShmCollective::latest(Counter RankArea::*counter) const {
  std::uint32_t latest = (peers_.mine().*counter).value.load(std::memory_order_acquire);
  for (std::size_t peer = 0; peer < peers_.ranks(); ++peer) {
    const auto theirs = (peers_.area(peer).*counter).value.load(std::memory_order_acquire);
    if (!reached(latest, theirs)) latest = theirs;
  }
  return latest;
}

// All ranks go on with equal numbers, as if all had done what the foremost one has done.
void ShmCollective::reset() {
  peers_.take_reset_step();  // now no rank moves a counter
  const std::uint32_t launched = latest(&RankArea::launched);
  const std::uint32_t posted = latest(&RankArea::posted);
  std::uint32_t operation = peers_.mine().operations.latest();
  for (std::size_t peer = 0; peer < peers_.ranks(); ++peer) {
    const std::uint32_t theirs = peers_.area(peer).operations.latest();
    if (!reached(operation, theirs)) operation = theirs;
  }
  peers_.take_reset_step();  // all have read them
  launched_ = added_ = launched;
  posted_ = posted;
  held_.fill(nullptr);
  peers_.mine().operations.go_on_after(operation);
  advance(peers_.mine().launched, launched);
  advance(peers_.mine().summed, launched);
  advance(peers_.mine().posted, posted);
  advance(peers_.mine().taken, posted);
  peers_.take_reset_step();  // all have moved theirs
}

}  // namespace

Result<std::unique_ptr<Collective>> join_shm(const ShmJob& job, Exchange& exchange) {
  DDPRUN_ASSERT(job.rank >= 0 && job.rank < job.ranks);
  // First, so that rank 0 makes no segment for ranks that never come.
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  auto control = meet_in_control(job, exchange);
  if (!control) return control.error();
  const ShmPeers::Options options{.rank = job.rank, .ranks = job.ranks, .timeout = job.timeout};
  auto collective = std::make_unique<ShmCollective>(std::move(*control), options);
  try {
    collective->complete_meeting();
  } catch (const CollectiveError& error) {
    // A rank died or was late while we met: an error of the start, like those of the exchange.
    return Error(ErrorCode::kUnavailable, error.what());
  }
  return std::unique_ptr<Collective>(std::move(collective));
}

}  // namespace ddprun::worker
