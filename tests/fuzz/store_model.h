// The answers that the store must give, written a second time in the plainest way. Maps are
// ordered, and a list of waits is searched from its front. store_conversation.cc compares the real
// table with it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/limits.h"
#include "store/table.h"
#include "store/wire.h"

namespace ddprun::fuzz {

struct Expected {
  std::string reply;
  std::vector<store::ConnectionId> woken;
  bool fails = false;     // the connection breaks a rule
  bool may_fail = false;  // it may pass a limit that counts what the model does not know
  // LIST_KEYS answers in any order: then these, and not `reply`.
  std::optional<std::set<std::string>> keys;
};

class StoreModel {
 public:
  explicit StoreModel(const store::StoreLimits& limits) : limits_(limits) {}

  Expected apply(store::ConnectionId from, const store::Request& request);
  // The answer to what apply() said may fail: nothing of the wait is there.
  void wait_failed(store::ConnectionId from);
  void disconnect(store::ConnectionId connection);

  std::size_t key_count() const { return values_.size(); }
  std::size_t stored_bytes() const;
  // Pairs of a wait and a key that it waits for.
  std::size_t registrations() const;

 private:
  using Fields = std::span<const std::string_view>;
  struct Wait {
    store::ConnectionId connection;
    std::set<std::string> missing;
  };

  void dispatch(store::ConnectionId from, const store::Request& request, Expected& out);
  void dispatch_queue(const store::Request& request, Expected& out);
  bool fits(std::size_t new_keys, std::size_t new_bytes) const;
  bool store(const std::string& key, const std::string& value);
  void set(const std::string& key, const std::string& value, Expected& out);
  void append(const std::string& key, const std::string& tail, Expected& out);
  std::optional<std::int64_t> increment(const std::string& key, std::int64_t delta);
  void compare_set(Fields fields, Expected& out);
  void list_keys(Expected& out) const;
  void wait(store::ConnectionId from, Fields keys, Expected& out);
  void barrier(store::ConnectionId from, const store::Request& request, Expected& out);
  void push(const std::string& name, const std::string& value, Expected& out);
  void pop(const std::string& name, Expected& out);
  void park(store::ConnectionId from, std::set<std::string> missing, std::size_t named_bytes,
            Expected& out);
  void wake(const std::string& key, bool only_oldest, Expected& out);
  bool has(const std::string& key) const { return values_.contains(key) || queues_.contains(key); }
  std::string value_of(std::string_view key) const;

  const store::StoreLimits& limits_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::list<Wait> waits_;                  // oldest first
  std::size_t names_ever_waited_for_ = 0;  // bytes; no fewer than the table holds
};

}  // namespace ddprun::fuzz
