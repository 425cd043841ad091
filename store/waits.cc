#include "store/waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace ddprun::store {
namespace {

// A sweep visits every key, so it must not run for a handful of stale entries.
constexpr std::size_t kStaleAllowed = 1024;

}  // namespace

Result<void> Waits::park(ConnectionId connection, std::span<const std::string_view> missing) {
  DDPRUN_ASSERT(!missing.empty());
  // All limits come first, so that an error leaves nothing parked. Stale entries count as well:
  // they take memory until the sweep.
  if (entries() + missing.size() > limits_.registrations)
    return Error(ErrorCode::kLimit,
                 fmt::format("waits for keys: at most {} at once", limits_.registrations));
  // Names of keys that do not exist take memory too, and a client chooses them.
  std::size_t name_bytes = 0;
  for (const std::string_view key : missing) name_bytes += key.size() + kEntryOverheadBytes;
  if (key_bytes_ + name_bytes > limits_.stored_bytes)
    return Error(ErrorCode::kLimit,
                 fmt::format("bytes of keys waited for: at most {}", limits_.stored_bytes));
  auto& slots = by_connection_[connection];
  if (slots.size() >= limits_.waits_per_connection)
    return Error(ErrorCode::kLimit,
                 fmt::format("waits of one connection: at most {}", limits_.waits_per_connection));
  const std::uint32_t slot = take_slot(connection);
  slots.push_back(slot);
  const Entry entry{slot, waits_[slot].generation};
  for (const std::string_view key : missing) {
    auto found = by_key_.find(key);
    if (found == by_key_.end()) {
      found = by_key_.emplace(key, std::vector<Entry>{}).first;
      key_bytes_ += key.size() + kEntryOverheadBytes;
    }
    // The request names this key twice. With two entries a queue would need two pushes to end the
    // wait.
    if (!found->second.empty() && found->second.back() == entry) continue;
    found->second.push_back(entry);
    ++waits_[slot].missing;
    ++live_;
  }
  return {};
}

void Waits::wake_all(std::string_view key, std::vector<ConnectionId>& woken) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const std::vector<Entry> entries = std::move(found->second);
  forget_key(found);
  for (const Entry entry : entries) wake(entry, woken);
}

// Stale entries in front of the oldest live one are removed on the way.
void Waits::wake_oldest(std::string_view key, std::vector<ConnectionId>& woken) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  auto& entries = found->second;
  const auto first = std::find_if_not(entries.begin(), entries.end(),
                                      [this](Entry entry) { return is_stale(entry); });
  stale_ -= static_cast<std::size_t>(first - entries.begin());
  if (first != entries.end()) wake(*first, woken);
  entries.erase(entries.begin(), first == entries.end() ? first : first + 1);
  if (entries.empty()) forget_key(found);
}

void Waits::cancel(ConnectionId connection) {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end()) return;
  for (const std::uint32_t slot : found->second) {
    // The entries themselves stay where they are: to find them would mean to search each key's
    // list. release() makes them stale.
    live_ -= waits_[slot].missing;
    stale_ += waits_[slot].missing;
    release(slot);
  }
  by_connection_.erase(found);
  if (stale_ > live_ + kStaleAllowed) sweep();
}

std::uint32_t Waits::take_slot(ConnectionId connection) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(waits_.size()));
    waits_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  waits_[slot].connection = connection;
  waits_[slot].missing = 0;
  return slot;
}

void Waits::release(std::uint32_t slot) {
  // From here on the old user's entries do not match.
  ++waits_[slot].generation;
  free_slots_.push_back(slot);
}

void Waits::wake(Entry entry, std::vector<ConnectionId>& woken) {
  if (is_stale(entry)) {
    --stale_;
    return;
  }
  Wait& wait = waits_[entry.slot];
  --live_;
  if (--wait.missing > 0) return;
  woken.push_back(wait.connection);
  const auto mine = by_connection_.find(wait.connection);
  std::erase(mine->second, entry.slot);
  if (mine->second.empty()) by_connection_.erase(mine);
  release(entry.slot);
}

void Waits::forget_key(StringMap<std::vector<Entry>>::iterator key) {
  key_bytes_ -= key->first.size() + kEntryOverheadBytes;
  by_key_.erase(key);
}

void Waits::sweep() {
  for (auto key = by_key_.begin(); key != by_key_.end();) {
    std::erase_if(key->second, [this](Entry entry) { return is_stale(entry); });
    // Step on first: forget_key() makes the iterator invalid.
    const auto here = key++;
    if (here->second.empty()) forget_key(here);
  }
  stale_ = 0;
}

}  // namespace ddprun::store
