#include "worker/collective/shm/shm_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/assert.h"
#include "worker/collective/core/flight_record.h"
#include "worker/collective/core/reached.h"
#include "worker/collective/core/split.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_order.h"
#include "worker/collective/kernels/ring_pieces.h"
#include "worker/collective/shm/shm_chunks.h"
#include "worker/collective/shm/shm_layout.h"
#include "worker/collective/shm/shm_peers.h"
#include "worker/collective/shm/shm_regions.h"
#include "worker/collective/shm/shm_segment.h"
#include "worker/collective/shm/shm_setup.h"

namespace ddprun::worker {
namespace {

// Returns the time that ranks may be apart when all add the same sum: about a quarter of its time.
std::chrono::nanoseconds share_of_sum(const SumSlot& sum) {
  constexpr std::size_t kBytesPerNanosecond = 100;
  return std::chrono::nanoseconds(sum.count * size_of(sum.dtype) / kBytesPerNanosecond);
}

class ShmCollective final : public HostCollective {
 public:
  ShmCollective(ShmSegment control, const ShmPeers::Options& options)
      : peers_(std::move(control), options) {}

  int rank() const override { return static_cast<int>(peers_.rank()); }
  int world_size() const override { return static_cast<int>(peers_.ranks()); }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "shm"; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return regions_.allocate(bytes);
  }
  Ticket launch(Flat flat, Reduction reduction) override {
    return launch(flat, all_reduce_of(reduction), Adder::kCollective);
  }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    return launch(flat, reduce_scatter_of(flat, parts, reduction, world_size()),
                  Adder::kCollective);
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    return launch(flat, all_gather_of(flat, parts, world_size()), Adder::kCollective);
  }
  Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) override {
    return launch(flat, all_to_all_of(flat, transfers, world_size()), Adder::kCollective);
  }
  Ticket launch_chunks(Flat flat, const LaunchRequest& request) override {
    return launch(flat, request, Adder::kCaller);
  }
  bool may_add(Ticket ticket) const override {
    return peers_.all_reached(&RankArea::launched, ticket);
  }
  void await_launch(Ticket ticket) override {
    peers_.wait_for_all(&RankArea::launched, ticket, sum_of(ticket));
  }
  OwnedChunk owned_chunk(Ticket ticket) override;
  void note_added(Ticket ticket) override;
  std::vector<std::vector<std::byte>> gather_for(OperationKind kind,
                                                 std::span<const std::byte> mine) override {
    return gather(PostKind::kGather, mine,
                  {"barrier of its host", peers_.mine().operations.begin(kind, 0)});
  }
  void progress() override;
  void wait(Ticket ticket) override;
  void broadcast(Flat flat, int root) override;
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override;
  void barrier() override;
  void monitored_barrier(std::chrono::milliseconds limit) override;
  std::byte* memory_of(Flat flat, int rank) override {
    const SumSlot place = regions_.describe(flat, Reduction::kSum);
    return regions_.slice(place.region, static_cast<std::size_t>(rank)) + place.offset_bytes;
  }
  void send(Flat flat, int to) override {
    wait(launched_);
    chunks_.send(flat, other_rank(to));
  }
  void receive(Flat flat, int from) override {
    wait(launched_);
    chunks_.receive(flat, other_rank(from));
  }
  std::uint32_t resets() const override { return resets_; }
  std::unique_ptr<Collective> split(int color, int key) override;
  std::string flight_record() const override {
    return worker::flight_record(
        peers_.mine().operations,
        {.rank = rank(), .ranks = world_size(), .timeout = peers_.timeout()});
  }
  void reset() override;

  // All ranks have mapped the control segment after the barrier. No rank opens it any more.
  void complete_setup() {
    barrier();
    peers_.control().close_file();
  }

 private:
  // The needs of a launched sum until this rank has done its share.
  struct SumShare {
    std::shared_ptr<ShmSegment> memory;  // the caller may have dropped its pointer meanwhile
    Flat flat;
    std::vector<RingPiece> pieces = {};    // of this rank's parts
    std::vector<Transfer> transfers = {};  // to this rank
  };

  Ticket launch(const Flat& flat, const LaunchRequest& request, Adder adder);
  std::vector<RingPiece> own_pieces(const Flat& flat, const LaunchRequest& request) const;
  std::vector<Transfer> own_transfers(const LaunchRequest& request) const;
  const SumSlot& sum(Ticket ticket) { return peers_.mine().sums[ticket % kSumSlots]; }
  std::uint32_t latest(Counter RankArea::*counter) const;
  void do_share(Ticket ticket);
  std::vector<std::byte*> buffers_of(const SumSlot& sum, std::size_t first,
                                     std::size_t begin) const;
  void check_same_sum(Ticket ticket, const SumSlot& mine);
  std::vector<std::vector<std::byte>> gather(PostKind kind, std::span<const std::byte> mine,
                                             const ShmPeers::Doing& doing);
  std::uint32_t post(PostKind kind, std::span<const std::byte> piece, std::size_t total_bytes,
                     const ShmPeers::Doing& doing);
  const PostSlot& look_at(std::size_t peer, std::uint32_t number, PostKind kind,
                          const ShmPeers::Doing& doing);
  std::uint32_t operation_of(Ticket ticket) const {
    return peers_.mine().sums[ticket % kSumSlots].operation;
  }
  ShmPeers::Doing sum_of(Ticket ticket) const {
    return {name_of(peers_.mine().sums[ticket % kSumSlots].sharing), operation_of(ticket)};
  }

  ShmPeers peers_;
  ShmChunks chunks_{peers_};
  ShmRegions regions_{*this, peers_};
  std::array<SumShare, kSumSlots> held_;  // by slot
  Ticket launched_ = 0;
  Ticket added_ = 0;  // sums of which this rank has done its share
  std::uint32_t resets_ = 0;
  std::uint32_t posted_ = 0;  // gathers, barriers, pieces of broadcasts
};

Ticket ShmCollective::launch(const Flat& flat, const LaunchRequest& request, Adder adder) {
  SumSlot sum = regions_.describe(flat, request.reduction);
  sum.adder = adder;
  sum.sharing = request.sharing;
  sum.parts = request.hash();
  sum.operation = peers_.mine().operations.begin(request.kind(), flat.bytes(), flat.dtype,
                                                 flat.name, sum.parts);
  if (launched_ - added_ >= kSumSlots) wait(launched_ - kSumSlots + 1);
  // The other ranks read our slot when they add that sum. So it can be overwritten once all have
  // added it. The target of the first sums wraps to a number below 0. It is reached at once.
  peers_.wait_for_all(&RankArea::summed, launched_ + 1 - kSumSlots,
                      {name_of(sum.sharing), sum.operation});
  peers_.mine().sums[++launched_ % kSumSlots] = sum;
  SumShare& held = held_[launched_ % kSumSlots];
  held = {regions_.hold(sum.region), flat};
  if (adder == Adder::kCollective) {
    held.pieces = own_pieces(flat, request);
    held.transfers = own_transfers(request);
  }
  advance(peers_.mine().launched, launched_);
  return launched_;
}

std::vector<RingPiece> ShmCollective::own_pieces(const Flat& flat,
                                                 const LaunchRequest& request) const {
  auto pieces = ring_pieces(flat.bytes(), size_of(flat.dtype), peers_.ranks(), request.parts);
  std::erase_if(pieces, [this](const RingPiece& piece) { return piece.owner != peers_.rank(); });
  return pieces;
}

std::vector<Transfer> ShmCollective::own_transfers(const LaunchRequest& request) const {
  std::vector<Transfer> own;
  std::ranges::copy_if(request.transfers, std::back_inserter(own),
                       [this](const Transfer& one) { return one.to == rank(); });
  return own;
}

// Only sums that all ranks have launched: until a rank has, its gradients are not in its bucket.
void ShmCollective::progress() {
  while (added_ != launched_ && sum(added_ + 1).adder == Adder::kCollective &&
         may_add(added_ + 1)) {
    do_share(added_ + 1);
  }
}

void ShmCollective::wait(Ticket ticket) {
  DDPRUN_ASSERT(reached(launched_, ticket));
  while (!reached(added_, ticket)) {
    DDPRUN_ASSERT(sum(added_ + 1).adder == Adder::kCollective);
    await_launch(added_ + 1);
    do_share(added_ + 1);
  }
  // Our share is done. The others write or read the rest of our buffer.
  const bool has_slot = launched_ - ticket < kSumSlots;  // else its slot is another one's by now
  ShmPeers::Doing doing = sum_of(ticket);
  if (has_slot && sum(ticket).adder == Adder::kCollective)
    doing.at_work = share_of_sum(sum(ticket));
  peers_.wait_for_all(&RankArea::summed, ticket, doing);
  if (has_slot) peers_.mine().operations.end(operation_of(ticket));
}

// Without this check ranks with different models would train on nonsense, silently.
void ShmCollective::check_same_sum(Ticket ticket, const SumSlot& mine) {
  for (std::size_t peer = 0; peer < peers_.ranks(); ++peer) {
    const SumSlot& theirs = peers_.area(peer).sums[ticket % kSumSlots];
    if (theirs == mine) continue;
    const auto says = [this](std::size_t rank, const SumSlot& sum) {
      return fmt::format("rank {} {} in {}", rank, describe(sum),
                         peers_.area(rank).operations.describe(sum.operation));
    };
    peers_.abort(fmt::format("{}, {}: they do different things, or train different models",
                             says(peers_.rank(), mine), says(peer, theirs)));
  }
}

// Rank `first` has the first one, then come those of the next ranks, in a circle. All are at byte
// `begin` of the flat.
std::vector<std::byte*> ShmCollective::buffers_of(const SumSlot& sum, std::size_t first,
                                                  std::size_t begin) const {
  std::vector<std::byte*> buffers(peers_.ranks());
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const std::size_t rank = (first + k) % buffers.size();
    buffers[k] = regions_.slice(sum.region, rank) + sum.offset_bytes + begin;
  }
  return buffers;
}

// Call only when all ranks have launched it.
OwnedChunk ShmCollective::owned_chunk(Ticket ticket) {
  const SumSlot& here = sum(ticket);
  check_same_sum(ticket, here);
  const std::size_t element = size_of(here.dtype);
  const std::size_t bytes = here.count * element;
  const bool adds = here.sharing == Sharing::kAllReduce || here.sharing == Sharing::kReduceScatter;
  const Chunk chunk =
      adds ? ring_chunk(bytes, element, peers_.ranks(), peers_.rank()) : Chunk{0, bytes};
  return {.buffers = buffers_of(here, peers_.rank(), chunk.begin),
          .begin = chunk.begin / element,
          .count = (chunk.end - chunk.begin) / element,
          .dtype = here.dtype};
}

void ShmCollective::note_added(Ticket ticket) {
  DDPRUN_ASSERT(ticket == added_ + 1);
  held_[ticket % kSumSlots] = {};
  added_ = ticket;
  advance(peers_.mine().summed, ticket);
}

// A reduce-scatter and an all-to-all read the other buffers and write this rank's; an all-gather
// the other way round. No rank touches the elements of another one's parts.
void ShmCollective::do_share(Ticket ticket) {
  const SumSlot& here = sum(ticket);
  const SumShare& share = held_[ticket % kSumSlots];
  const OwnedChunk chunk = owned_chunk(ticket);
  if (here.sharing == Sharing::kAllReduce)
    reduce_to_all(chunk.buffers, chunk.count, chunk.dtype, here.reduction);
  for (const Transfer& one : share.transfers)
    copy_elements(share.flat, one, chunk.buffer_of(one.from, rank()));
  for (const RingPiece& piece : share.pieces) {
    const std::size_t begin = piece.bytes.begin;
    if (here.sharing == Sharing::kAllGather) {
      copy_first_to_all(buffers_of(here, peers_.rank(), begin), piece.size());
      continue;
    }
    const auto buffers = buffers_of(here, piece.first, begin);
    const std::size_t own = (peers_.rank() + peers_.ranks() - piece.first) % peers_.ranks();
    reduce_to_one(buffers[own], buffers, piece.size() / size_of(here.dtype), here.dtype,
                  here.reduction);
  }
  note_added(ticket);
}

// Puts a piece into this rank's next staging slot, where the others see it. Returns the number of
// the piece.
std::uint32_t ShmCollective::post(PostKind kind, std::span<const std::byte> piece,
                                  std::size_t total_bytes, const ShmPeers::Doing& doing) {
  const std::uint32_t number = ++posted_;
  const std::uint32_t slot = number % kStagingSlots;
  // The slot was last used two pieces ago. A rank that still reads it must not be overtaken.
  peers_.wait_for_all(&RankArea::taken, number - kStagingSlots, doing);
  peers_.mine().posts[slot] = {.number = number,
                               .operation = doing.operation,
                               .kind = kind,
                               .bytes = piece.size(),
                               .total_bytes = total_bytes};
  if (!piece.empty()) {
    std::memcpy(peers_.view().staging(peers_.rank(), slot), piece.data(), piece.size());
  }
  advance(peers_.mine().posted, number);
  return number;
}

// Waits for the piece that `peer` has posted under the same number. If it posted something else,
// the programs of the two ranks have taken different ways.
const PostSlot& ShmCollective::look_at(std::size_t peer, std::uint32_t number, PostKind kind,
                                       const ShmPeers::Doing& doing) {
  peers_.wait_for(peer, &RankArea::posted, number, doing);
  const PostSlot& post = peers_.area(peer).posts[number % kStagingSlots];
  if (post.number != number || post.kind != kind) {
    peers_.abort(fmt::format("rank {} does {}, rank {} does {}: they do different things",
                             peers_.rank(), peers_.mine().operations.describe(doing.operation),
                             peer, peers_.area(peer).operations.describe(post.operation)));
  }
  return post;
}

// Every rank posts, root its piece and the others nothing. So the numbers of the pieces stay equal,
// and a rank that gathers meanwhile is found out.
void ShmCollective::broadcast(Flat flat, int root) {
  auto* data = static_cast<std::byte*>(flat.data);
  const std::size_t total = flat.bytes();
  const auto source = static_cast<std::size_t>(root);
  const ShmPeers::Doing doing{
      "broadcast",
      peers_.mine().operations.begin(OperationKind::kBroadcast, total, flat.dtype, flat.name)};
  for (std::size_t done = 0; done < total; done += kStagingBytes) {
    const std::size_t length = std::min(total - done, kStagingBytes);
    const std::span<const std::byte> piece(data + done, rank() == root ? length : 0);
    const std::uint32_t number = post(PostKind::kBroadcast, piece, total, doing);
    if (rank() != root) {
      const PostSlot& theirs = look_at(source, number, PostKind::kBroadcast, doing);
      if (theirs.bytes != length || theirs.total_bytes != total) {
        peers_.abort(fmt::format("broadcast: rank {} sends {} bytes, rank {} expects {}", root,
                                 theirs.total_bytes, rank(), total));
      }
      std::memcpy(data + done, peers_.view().staging(source, number % kStagingSlots), length);
    }
    advance(peers_.mine().taken, number);
  }
  peers_.mine().operations.end(doing.operation);
}

void ShmCollective::barrier() {
  gather(PostKind::kBarrier, {},
         {"barrier", peers_.mine().operations.begin(OperationKind::kBarrier, 0)});
}

void ShmCollective::monitored_barrier(std::chrono::milliseconds limit) {
  gather(PostKind::kBarrier, {},
         {.what = "monitored barrier",
          .operation = peers_.mine().operations.begin(OperationKind::kBarrier, 0),
          .names_all = true,
          .limit = ShmPeers::limit_from_now(limit)});
}

std::unique_ptr<Collective> ShmCollective::split(int color, int key) {
  const auto join = [this](const GroupPlace& place,
                           Exchange& exchange) -> Result<std::unique_ptr<Collective>> {
    if (place.ranks == 1) return make_alone_collective();
    return as_collective(join_shm(
        {.rank = place.rank, .ranks = place.ranks, .timeout = peers_.timeout()}, exchange));
  };
  return split_group(*this, {color, key}, join);
}

std::vector<std::vector<std::byte>> ShmCollective::all_gather_bytes(
    std::span<const std::byte> mine) {
  check_gather_size(mine.size());
  return gather(PostKind::kGather, mine,
                {"gather", peers_.mine().operations.begin(OperationKind::kGather, mine.size())});
}

std::vector<std::vector<std::byte>> ShmCollective::gather(PostKind kind,
                                                          std::span<const std::byte> mine,
                                                          const ShmPeers::Doing& doing) {
  const std::uint32_t number = post(kind, mine, mine.size(), doing);
  std::vector<std::vector<std::byte>> blobs(peers_.ranks());
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    const PostSlot& theirs = look_at(peer, number, kind, doing);
    const std::byte* piece = peers_.view().staging(peer, number % kStagingSlots);
    blobs[peer].assign(piece, piece + theirs.bytes);
  }
  advance(peers_.mine().taken, number);
  peers_.mine().operations.end(doing.operation);
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
  held_.fill({});
  chunks_.forget();
  ++resets_;
  peers_.mine().operations.go_on_after(operation);
  advance(peers_.mine().launched, launched);
  advance(peers_.mine().summed, launched);
  advance(peers_.mine().posted, posted);
  advance(peers_.mine().taken, posted);
  peers_.take_reset_step();  // all have moved theirs
}

}  // namespace

Result<std::unique_ptr<HostCollective>> join_shm(const ShmJob& job, Exchange& exchange) {
  DDPRUN_ASSERT(job.rank >= 0 && job.rank < job.ranks);
  // First, so that rank 0 makes no segment for ranks that never come.
  if (const auto all_here = exchange.arrive(); !all_here) return all_here.error();
  auto control = set_up_control(job, exchange);
  if (!control) return control.error();
  const ShmPeers::Options options{.rank = job.rank, .ranks = job.ranks, .timeout = job.timeout};
  auto collective = std::make_unique<ShmCollective>(std::move(*control), options);
  try {
    collective->complete_setup();
  } catch (const CollectiveError& error) {
    // A rank died or was late while we met: an error of the start, like those of the exchange.
    return Error(ErrorCode::kUnavailable, error.what());
  }
  return std::unique_ptr<HostCollective>(std::move(collective));
}

}  // namespace ddprun::worker
