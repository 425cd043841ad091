// A blocking TCPStore client for programs without a loop (the engine's bootstrap, tests). It works
// with our server and with those of PyTorch 2.11 and 2.15. Every call ends within a time limit. One
// thread at a time; a call blocks it. Keys are sent as they are. PyTorch's client puts a `/` in
// front of every key of its users. So a key that both sides shall see must begin with `/`. If
// wait(), get() or multi_get() run out of time because a key is missing, the client stays usable.
// After any other error the connection is closed and every later call fails. A late answer could be
// taken for the answer to another request.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/blocking_socket.h"
#include "store/wire.h"

namespace ddprun::store {

class Client {
 public:
  using Duration = std::chrono::milliseconds;

  // Connects and shakes hands. The server may not be up yet. So it tries again and again until
  // `limit` has passed, with pauses that grow and are random. `limit` is also the time limit of
  // every later call; set_limit() changes it. Errors: kNotFound (no such host), kTimedOut (the
  // message says what failed last). `who`, if given, is named in the log while the wait goes on, at
  // the moments of wait_schedule.h.
  static Result<Client> connect(const std::string& host, std::uint16_t port, Duration limit,
                                const std::string& who = {});

  Client(Client&&) = default;
  Client& operator=(Client&&) = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() = default;

  void set_limit(Duration limit) { limit_ = limit; }

  // The address of this host that the server sees, numeric. Empty after an error.
  std::string local_address() const { return socket_ ? socket_->local_address() : std::string(); }

  // The protocol has no answer to set, append, multi_set and queue_push. Success means that the
  // kernel took the bytes; the server may still refuse them. Call ping() to know that it has
  // applied them.
  Result<void> set(std::string_view key, std::string_view value);
  Result<void> append(std::string_view key, std::string_view tail);
  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs);
  Result<void> queue_push(std::string_view queue, std::string_view value);
  Result<void> ping();

  // Waits until the key exists, then reads it. kTimedOut: it did not appear.
  Result<std::string> get(std::string_view key);
  // As get(), for all of `keys`. The values are in the order of `keys`.
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys);
  // Returns when all of `keys` exist. kTimedOut after `limit`; the message names the first of
  // `keys`, whether missing or not. To take the wait back at the server can cost some seconds more.
  Result<void> wait(std::span<const std::string> keys, Duration limit);
  Result<void> wait(std::string_view key, Duration limit);

  // Returns the sum after adding. A missing key counts as 0. If the value is no number, the server
  // closes the connection.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Stores `desired` if the key holds `expected`, or if the key is missing and `expected` is empty.
  // Returns the value that the key holds afterwards. If the key is missing and stays so, it returns
  // `expected`. That is PyTorch's rule, so the answer alone does not prove that the key exists.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired);
  // Returns whether all of `keys` exist.
  Result<bool> check(std::span<const std::string> keys);
  Result<bool> remove(std::string_view key);  // whether it was there
  // Returns how many keys there are; queues do not count.
  Result<std::int64_t> num_keys();
  // Names of all keys, in no order; without queues.
  Result<std::vector<std::string>> list_keys();

  // 0 for a queue that does not exist.
  Result<std::int64_t> queue_length(std::string_view queue);
  // The oldest value; nothing if the queue is empty. To block, wait() for the queue's name first.
  // Another client may still take the value before us.
  Result<std::optional<std::string>> queue_pop(std::string_view queue);

 private:
  using Fields = std::span<const std::string_view>;

  Client(std::string server, BlockingSocket socket, Duration limit)
      : server_(std::move(server)), socket_(std::move(socket)), limit_(limit) {}

  Result<void> shake_hands(Deadline deadline, const std::function<Deadline()>& tell);
  Deadline deadline() const { return std::chrono::steady_clock::now() + limit_; }
  Result<void> send(Op op, std::int64_t number, Fields fields, Deadline until);
  Result<void> send_only(Op op, Fields fields);
  Result<void> wait_views(Fields keys, Duration limit);
  Result<void> cancel_wait(Fields keys, Duration limit);
  Result<char> read_status(Deadline until);
  Result<std::int64_t> read_number(Deadline until);
  Result<std::string> read_bytes(Deadline until);
  Result<std::vector<std::string>> read_list(std::size_t count, Deadline until);
  Result<void> receive(std::span<char> into, Deadline until);
  Error broken(const Error& cause);

  std::string server_;                    // "address:port", for messages
  std::optional<BlockingSocket> socket_;  // nothing: closed after an error
  Duration limit_;
  std::string request_;  // bytes of the last request; kept for their memory
  std::string doing_;    // what the current call attempts, for messages
};

}  // namespace ddprun::store
