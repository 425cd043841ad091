// The last operations of one rank, in memory that the other ranks of the host read. A rank that
// waits for another can say what that does instead. Zero-filled memory is a valid ring. Only its
// own rank writes, word by word; a reader may meet half an entry, and prints it to people.
#pragma once

#include <ddprun/collective.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace ddprun::worker {

enum class OperationKind : std::uint8_t {
  kSum,
  kReduce,
  kGather,  // of bytes
  kBarrier,
  kBroadcast,
  kSend,
  kReceive,
  kReduceScatter,
  kAllGather,
  kAllToAll,
};
inline constexpr OperationKind kLastOperationKind = OperationKind::kAllToAll;

// Returns whether one rank sends and another receives: the others have no part in it.
constexpr bool is_transfer(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}

// The kind of a sum, or of another reduction.
constexpr OperationKind kind_of(Reduction reduction) {
  return is_sum(reduction) ? OperationKind::kSum : OperationKind::kReduce;
}

struct Operation {
  std::uint32_t number;  // of this rank's operations: counts from 1, and wraps
  // The same, of collective operations and of transfers apart. All ranks call the operations in the
  // same order, so collective operations have the same one on all of them.
  std::uint32_t sequence;
  OperationKind kind;
  Dtype dtype;
  OperationName name;  // empty: the program gave none
  std::uint64_t bytes;
  std::int64_t begun_ns;  // of steady_clock
  std::int64_t done_ns;   // 0: not done
  // LaunchRequest::hash(), else 0.
  std::uint64_t parts = 0;
};

static_assert(std::is_trivially_copyable_v<Operation> && sizeof(Operation) % 8 == 0);

class OperationRing {
 public:
  static constexpr std::uint32_t kLength = 1024;

  // The rank begins its next operation. Returns its number.
  std::uint32_t begin(OperationKind kind, std::uint64_t bytes, Dtype dtype = Dtype::kUInt8,
                      const OperationName& name = {}, std::uint64_t parts = 0);
  void end(std::uint32_t number);

  // The number of the latest one; 0: none. After go_on_after(n) the next one is n + 1.
  std::uint32_t latest() const { return begun_.load(std::memory_order_acquire); }
  void go_on_after(std::uint32_t number);

  // Nothing if there is no such operation yet, or if it is too long ago.
  std::optional<Operation> find(std::uint32_t number) const;
  // The latest one. Nothing if the rank has begun none.
  std::optional<Operation> last() const;
  // As below; "another operation" where there is none of this number.
  std::string describe(std::uint32_t number) const;

 private:
  // An Operation's bytes.
  using Entry = std::array<std::atomic<std::uint64_t>, sizeof(Operation) / sizeof(std::uint64_t)>;
  static Operation read(const Entry& entry);

  std::atomic<std::uint32_t> begun_;  // the number of the latest one
  std::uint32_t collectives_;
  std::uint32_t transfers_;
  std::array<Entry, kLength> entries_;
};

// "sum of 4096 bytes (operation 12)", "sum of bucket 3, 4096 bytes (operation 12)", "barrier
// (operation 13)".
std::string describe(const Operation& operation);

}  // namespace ddprun::worker
