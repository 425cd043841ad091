// The waits for keys. A wait is parked under each of its missing keys. It is complete when each of
// these keys has woken it once. To wake a key costs only its own waiters. A cancelled wait costs
// O(1): its entries stay behind as stale ones. Wakes skip stale entries, and a sweep removes them
// when they outnumber the live ones. Pure. Belongs to Table, on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "store/limits.h"

namespace ddprun::store {

// Names one connection. A number is never used twice in the life of a server. So a late wake cannot
// hit a newer connection.
using ConnectionId = std::uint64_t;

// Lets a map with std::string keys be searched with a string_view. Otherwise every look-up would
// copy the key.
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
  explicit Waits(const StoreLimits& limits) : limits_(limits) {}

  // Parks one wait of `connection` under each of `missing`, which must not be empty (asserted). A
  // name that occurs twice counts once. Error: kLimit; then nothing is parked.
  Result<void> park(ConnectionId connection, std::span<const std::string_view> missing);

  // `key` exists now: each wait under it has one key less to wait for. Appends the connections of
  // the waits that are complete to `woken`, in the order in which they were parked.
  void wake_all(std::string_view key, std::vector<ConnectionId>& woken);

  // As wake_all(), but wakes only the oldest wait: one value of a queue serves one waiter.
  void wake_oldest(std::string_view key, std::vector<ConnectionId>& woken);

  // Forgets all waits of `connection`.
  void cancel(ConnectionId connection);

  // Pending (key, wait) pairs, without the cancelled ones that are not swept yet.
  std::size_t registrations() const { return live_; }
  // Pairs in memory, stale ones included. After each cancelled wait there are at most 2 x
  // registrations() + a constant.
  std::size_t entries() const { return live_ + stale_; }

 private:
  struct Wait {
    ConnectionId connection = 0;
    // Counts the users of this slot. An entry with another number belongs to an earlier user and is
    // stale.
    std::uint32_t generation = 0;
    // Keys that have not woken this wait yet.
    std::uint32_t missing = 0;
  };
  struct Entry {
    std::uint32_t slot;
    std::uint32_t generation;
    bool operator==(const Entry&) const = default;
  };

  // A slot is an index of waits_. Slots are used again, so that memory does not grow with every
  // wait.
  std::uint32_t take_slot(ConnectionId connection);
  void release(std::uint32_t slot);
  void wake(Entry entry, std::vector<ConnectionId>& woken);
  bool is_stale(Entry entry) const { return waits_[entry.slot].generation != entry.generation; }
  // Erases the key with all its entries.
  void forget_key(StringMap<std::vector<Entry>>::iterator key);
  void sweep();

  const StoreLimits& limits_;
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
