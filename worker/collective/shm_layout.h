// What lies where in the ranks' shared control segment: a header, then one area per rank, then two
// staging slots per rank. Only its own rank writes an area; all read it. All ranks run the same
// program on the same host, so plain structs do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "worker/collective/collective.h"

namespace ddprun::worker {

// Two cache lines: the hardware fetches them in pairs.
inline constexpr std::size_t kLineBytes = 128;

// A counter that one rank moves forward and others wait for, on lines of its own. Zero-filled
// memory is a valid Counter.
struct alignas(kLineBytes) Counter {
  std::atomic<std::uint32_t> value;
  // Processes inside futex_wait: the mover calls the kernel only for them.
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "words are shared between processes");

// A launched sum, as its rank sees it. The other ranks compare it with theirs before they add
// unlike things.
struct SumSlot {
  std::uint64_t offset_bytes;  // in the rank's slice of the region
  std::uint64_t count;         // elements
  std::uint32_t region;        // number of the region, in order of allocation
  Dtype dtype;

  bool operator==(const SumSlot&) const = default;
};

enum class PostKind : std::uint8_t { kNone, kGather, kBroadcast };

// What a rank put into its staging slot.
struct PostSlot {
  std::uint32_t number;  // of the operation
  PostKind kind;
  std::uint64_t bytes;        // in the slot
  std::uint64_t total_bytes;  // of the whole broadcast
};

// Sums launched and not complete on all ranks. 256: more buckets than any model of 6 GB has at 25
// MiB each; a launch beyond waits for the oldest.
inline constexpr std::uint32_t kSumSlots = 256;

// Broadcasts go through in pieces of this size; two slots, so that the next piece is written while
// the last is read.
inline constexpr std::size_t kStagingBytes = Collective::kGatherBytesMax;
inline constexpr std::uint32_t kStagingSlots = 2;

struct RankArea {
  Counter launched;  // sums started by this rank
  Counter summed;    // sums whose chunk this rank has added and stored
  Counter posted;    // gathers, barriers and pieces of broadcasts this rank has put into staging
  Counter taken;     // … this rank has read from everybody it needs
  std::atomic<std::int32_t> pid;
  std::array<SumSlot, kSumSlots> sums;
  std::array<PostSlot, kStagingSlots> posts;
};

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::atomic<std::uint32_t> aborted;  // 0 no, 1 somebody writes the reason, 2 the reason is there
  std::array<char, 512> reason;        // a line, ended by a zero
};

inline constexpr std::uint64_t kControlMagic = 0x6464'7072'756e'7368;  // "ddprunsh"
inline constexpr std::uint32_t kControlVersion = 1;

inline constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

inline constexpr std::size_t control_bytes(std::size_t ranks) {
  return round_up(sizeof(Header), kLineBytes) +
         ranks * (sizeof(RankArea) + kStagingSlots * kStagingBytes);
}

// Finds the parts in a mapped control segment.
struct ControlView {
  std::byte* base = nullptr;
  std::size_t ranks = 0;

  Header& header() const { return *reinterpret_cast<Header*>(base); }
  RankArea& area(std::size_t rank) const {
    return reinterpret_cast<RankArea*>(base + round_up(sizeof(Header), kLineBytes))[rank];
  }
  std::byte* staging(std::size_t rank, std::uint32_t slot) const {
    std::byte* first = base + round_up(sizeof(Header), kLineBytes) + ranks * sizeof(RankArea);
    return first + (rank * kStagingSlots + slot) * kStagingBytes;
  }
};

}  // namespace ddprun::worker
