// Who waits for which key. A wait is parked under each of its missing keys and ends when each was
// woken once. Waking looks at the waiters of one key only; cancelling is O(1) per wait: it leaves
// stale entries behind, which are skipped, and swept once they outnumber the live ones. Pure;
// belongs to Table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/result.h"
#include "store/limits.h"

namespace ddprun::store {

// Names one connection for the life of the server; never used twice.
using ConnectionId = std::uint64_t;

// Lets maps keyed by std::string be searched with a string_view, without a copy.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

class Waits {
 public:
  explicit Waits(const Limits& limits) : limits_(limits) {}

  // Parks one wait of `connection` under each of `missing` (not empty; a name named twice counts
  // once). Error, with nothing parked: a limit would be passed.
  Result<void> park(ConnectionId connection, std::span<const std::string_view> missing);

  // `key` exists now: every wait under it has one key less to wait for. The connections of those
  // that are complete are appended to `woken`, first come first.
  void wake_all(std::string_view key, std::vector<ConnectionId>& woken);

  // As wake_all, but only for the wait that came first: one queue element serves one waiter.
  void wake_oldest(std::string_view key, std::vector<ConnectionId>& woken);

  // Forgets all waits of `connection`.
  void cancel(ConnectionId connection);

  // Pending (key, wait) pairs; cancelled ones that are still to be swept are not counted.
  std::size_t registrations() const { return live_; }
  // Entries in memory, stale ones included: bounded by 2 x registrations() + a constant.
  std::size_t entries() const { return live_ + stale_; }

 private:
  struct Wait {
    ConnectionId connection = 0;
    // Counts the users of this slot, so that entries of former ones are seen as stale.
    std::uint32_t generation = 0;
    std::uint32_t missing = 0;
  };
  struct Entry {
    std::uint32_t slot;
    std::uint32_t generation;
    bool operator==(const Entry&) const = default;
  };

  std::uint32_t take_slot(ConnectionId connection);
  void release(std::uint32_t slot);
  void wake(Entry entry, std::vector<ConnectionId>& woken);
  bool is_stale(Entry entry) const { return waits_[entry.slot].generation != entry.generation; }
  void forget_key(StringMap<std::vector<Entry>>::iterator key);
  void sweep();

  const Limits& limits_;
  StringMap<std::vector<Entry>> by_key_;  // in order of arrival
  // Slots of its pending waits.
  std::unordered_map<ConnectionId, std::vector<std::uint32_t>> by_connection_;
  std::vector<Wait> waits_;
  std::vector<std::uint32_t> free_slots_;
  std::size_t live_ = 0;
  std::size_t stale_ = 0;
  std::size_t key_bytes_ = 0;  // of the names in by_key_
};

}  // namespace ddprun::store
