// The layout of the control segment that the ranks of a host share. A header comes first, then one
// area per rank, then two staging slots and two chunks per rank. The marks of what each has read
// of the others' chunks come last. Only its own rank writes an area, and all ranks read it. But in
// each Counter the waiting ranks count themselves in `sleepers`. All ranks run the same program on
// the same host, so plain structs have the same layout for all. shm_peers.h and shm_collective.cc
// say who waits for what.
#pragma once

#include <ddprun/collective.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "worker/collective/core/operation_ring.h"
#include "worker/collective/core/parts.h"

namespace ddprun::worker {

// Two cache lines. The hardware fetches lines in pairs: data of two ranks in one pair would slow
// both down.
inline constexpr std::size_t kLineBytes = 128;

// A counter that one rank moves forward and other ranks wait for. It has its cache lines to itself.
// Zero-filled memory is a valid Counter.
struct alignas(kLineBytes) Counter {
  std::atomic<std::uint32_t> value;
  // Processes that sleep in futex_wait or are about to. While it is 0, the mover needs no system
  // call.
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "words are shared between processes");

// The ranks that add a sum. Each rank owns one chunk of it.
enum class Adder : std::uint8_t {
  kCollective,  // each rank, in progress() or wait()
  kCaller       // whoever has launched it, on each rank (HostCollective)
};

// A launched sum, all-gather or all-to-all, as its rank describes it. The other ranks compare it
// with their own description: ranks with different models must not add unlike things.
struct SumSlot {
  std::uint64_t offset_bytes;  // in the rank's slice of the region
  std::uint64_t count;         // elements
  std::uint32_t region;        // number of the region, in order of allocation
  Dtype dtype;
  Reduction reduction;
  Adder adder = Adder::kCollective;
  Sharing sharing = Sharing::kAllReduce;
  std::uint64_t parts = 0;      // LaunchRequest::hash()
  std::uint32_t operation = 0;  // in its rank's ring: of no account where slots are compared

  bool operator==(const SumSlot& other) const {
    return offset_bytes == other.offset_bytes && count == other.count && region == other.region &&
           dtype == other.dtype && reduction == other.reduction && adder == other.adder &&
           sharing == other.sharing && parts == other.parts;
  }
};

enum class PostKind : std::uint8_t { kNone, kGather, kBarrier, kBroadcast };

// The piece that a rank put into its staging slot.
struct PostSlot {
  std::uint32_t number;     // of the piece
  std::uint32_t operation;  // that it belongs to, in its rank's ring
  PostKind kind;
  std::uint64_t bytes;        // in the slot
  std::uint64_t total_bytes;  // of the whole broadcast
};

// A piece of what a rank sends to one other rank. The piece itself lies behind the staging slots.
struct SentChunk {
  std::atomic<std::uint64_t> number;  // of its rank's chunks, from 1 on; 0 while its rank writes it
  std::atomic<std::uint32_t> to;
  std::uint64_t bytes;        // of the piece
  std::uint64_t total_bytes;  // of all that is sent
};

// How many sums may be launched and not complete on all ranks.
inline constexpr std::uint32_t kSumSlots = Collective::kLaunchedMax;

// Broadcasts travel in pieces of this size. There are two slots, so that root writes the next piece
// while the others still read the last one.
inline constexpr std::size_t kStagingBytes = Collective::kGatherBytesMax;
inline constexpr std::uint32_t kStagingSlots = 2;

// As above, for what one rank sends to another. They fit into a second-level cache.
inline constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
inline constexpr std::uint32_t kChunkSlots = 2;

// The event that a rank waits for at this moment. Its `sequence` is odd while it waits, and moves
// at each begin and end. Two looks that find it unchanged have seen one and the same wait.
struct alignas(kLineBytes) Waiting {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> peer;       // for whom
  std::atomic<std::uint32_t> counter;    // which one of the peer, by its place in wait_cycle.cc
  std::atomic<std::uint32_t> target;     // of the counter
  std::atomic<std::uint32_t> operation;  // the number of the operation that waits
};

struct RankArea {
  Counter launched;  // sums started by this rank
  Counter summed;    // sums whose chunk this rank has added and stored
  Counter posted;    // gathers, barriers and broadcast pieces that this rank has put into staging
  Counter taken;     // … and those that it has read from every rank it reads from
  Counter chunks;    // that this rank has written, to whomever
  Counter chunks_read;  // … and that it has read, from whomever
  Counter resets;       // steps of resets: three make one
  Waiting waiting;
  std::atomic<std::int32_t> pid;  // 0: it has not signed in
  // The inode of its pid namespace, in which alone `pid` means something.
  std::atomic<std::uint64_t> pid_namespace;
  std::atomic<std::uint32_t> left;  // 1: it has destroyed its collective
  OperationRing operations;
  std::array<SumSlot, kSumSlots> sums;
  std::array<PostSlot, kStagingSlots> posts;
  std::array<SentChunk, kChunkSlots> chunk_slots;
};

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::atomic<std::uint32_t> aborted;  // 0 no, 1 somebody writes the reason, 2 the reason is there
  std::array<char, 512> reason;        // a line, ended by a zero
};

inline constexpr std::uint64_t kControlMagic = 0x6464'7072'756e'7368;  // "ddprunsh"
inline constexpr std::uint32_t kControlVersion = 6;

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

inline constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The size of the whole segment. All ranks map exactly so many bytes.
inline constexpr std::size_t control_bytes(std::size_t ranks) {
  return round_up(sizeof(Header), kLineBytes) +
         ranks * (sizeof(RankArea) + kStagingSlots * kStagingBytes + kChunkSlots * kChunkBytes) +
         ranks * round_up(ranks * sizeof(std::uint64_t), kLineBytes);
}

// Finds the parts of a mapped control segment. Does not own it.
struct ControlView {
  std::byte* base = nullptr;
  std::size_t ranks = 0;

  Header& header() const { return *reinterpret_cast<Header*>(base); }
  RankArea& area(std::size_t rank) const {
    return reinterpret_cast<RankArea*>(base + round_up(sizeof(Header), kLineBytes))[rank];
  }
  std::byte* staging(std::size_t rank, std::uint32_t slot) const {
    return behind_areas() + (rank * kStagingSlots + slot) * kStagingBytes;
  }
  std::byte* chunk(std::size_t rank, std::uint32_t slot) const {
    return chunks() + (rank * kChunkSlots + slot) * kChunkBytes;
  }
  // The number of the latest chunk of `from` that `reader` has read. The reader writes it.
  std::atomic<std::uint64_t>& last_read(std::size_t reader, std::size_t from) const {
    std::byte* rows = chunks() + ranks * kChunkSlots * kChunkBytes;
    std::byte* row = rows + reader * round_up(ranks * sizeof(std::uint64_t), kLineBytes);
    return reinterpret_cast<std::atomic<std::uint64_t>*>(row)[from];
  }

 private:
  std::byte* behind_areas() const {
    return base + round_up(sizeof(Header), kLineBytes) + ranks * sizeof(RankArea);
  }
  std::byte* chunks() const { return behind_areas() + ranks * kStagingSlots * kStagingBytes; }
};

}  // namespace ddprun::worker
