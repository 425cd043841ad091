// The contents of the store and the effect of each request. They are a map from keys to bytes,
// queues, and who waits for what. A request goes in; the bytes to send and the connections to wake
// come out. The owner of the table (Server) does the sending. Pure: no socket, no clock. A wait
// does not expire here: the client keeps the time and sends CANCEL_WAIT. docs/store.md has the
// meaning of the requests, after torch 2.11 and 2.15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/limits.h"
#include "store/waits.h"
#include "store/wire.h"

namespace ddprun::store {

// From this size on GET does not copy the value. Below, two pieces cost more than the copy.
inline constexpr std::size_t kLargeValueBytes = std::size_t{32} * 1024;

// The bytes that requests make the server send. The caller clears it before the next use and keeps
// its memory, so that an ordinary request allocates nothing.
struct Replies {
  std::string reply;  // to the connection that asked, in the order of its requests
  // Follows `reply`: a large value of a GET, where the table has it, so that it is not copied. Send
  // it before the next request is applied (asserted).
  std::string_view large_value;
  std::size_t bytes() const { return reply.size() + large_value.size(); }
  // Each gets one Status::kReady byte; a connection may occur twice.
  std::vector<ConnectionId> woken;
};

class Table {
 public:
  // `limits` must outlive the table.
  explicit Table(const StoreLimits& limits) : limits_(limits), waits_(limits) {}

  // Applies one decoded request of connection `from`, and appends to `out` what must be sent. If
  // the request ends a wait of `from` itself, the byte for that is in `out.reply`. It is behind the
  // request's own answer. Errors: kProtocol (ADD to a value that is no number), kLimit. The table
  // is then as before, except that a MULTI_SET may be half done and a BARRIER may have counted.
  // Close the connection after an error.
  Result<void> apply(ConnectionId from, const Request& request, Replies& out);

  // The connection is gone: forgets its waits. Keys have no owner and stay.
  void disconnect(ConnectionId connection) { waits_.cancel(connection); }

  std::size_t key_count() const { return values_.size(); }
  // Bytes of keys, values and queues, with kEntryOverheadBytes for each entry.
  std::size_t stored_bytes() const { return stored_bytes_; }
  const Waits& waits() const { return waits_; }

 private:
  using Keys = std::span<const std::string_view>;

  Result<void> dispatch(ConnectionId from, const Request& request, Replies& out);
  Result<void> set(std::string_view key, std::string_view value, Replies& out);
  Result<void> multi_set(Keys fields, Replies& out);
  Result<void> append(std::string_view key, std::string_view tail, Replies& out);
  Result<void> add(std::string_view key, std::int64_t delta, Replies& out);
  Result<void> compare_set(Keys fields, Replies& out);
  Result<void> get(std::string_view key, Replies& out) const;
  Result<void> multi_get(Keys keys, Replies& out) const;
  Result<void> list_keys(Replies& out) const;
  void remove(std::string_view key, Replies& out);
  void check(Keys keys, Replies& out) const;
  Result<void> wait(ConnectionId from, Keys keys, Replies& out);
  Result<void> barrier(ConnectionId from, const Request& request, Replies& out);
  Result<void> queue_push(std::string_view name, std::string_view value, Replies& out);
  void queue_pop(std::string_view name, Replies& out);
  std::int64_t queue_length(std::string_view name) const;

  bool has(std::string_view key) const { return values_.contains(key) || queues_.contains(key); }
  Result<std::int64_t> increment(std::string_view key, std::int64_t delta);
  Result<void> store(std::string_view key, std::string_view value);
  Result<void> reserve(std::size_t new_keys, std::size_t new_bytes) const;
  Result<void> check_reply(std::size_t bytes) const;

  const StoreLimits& limits_;
  StringMap<std::string> values_;
  // A queue is erased with its last value, since an empty one must not count as existing.
  StringMap<std::list<std::string>> queues_;
  Waits waits_;
  std::size_t stored_bytes_ = 0;
  std::vector<std::string_view> missing_;  // scratch of wait()
};

}  // namespace ddprun::store
