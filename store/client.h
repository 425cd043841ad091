// A blocking TCPStore client for programs without a loop (the engine's bootstrap, tests). Speaks to
// our server and to those of PyTorch 2.11 and 2.15. Every call ends within a time limit. Keys are
// sent as they are: PyTorch puts a `/` in front of every key of its users, so a key that both sides
// shall see starts with one. One thread at a time; a call blocks it. After an error other than the
// time-out of wait() and get() the connection is closed, and every later call says so: a late
// answer must not be taken for that of another request.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/result.h"
#include "store/blocking_socket.h"
#include "store/wire.h"

namespace ddprun::store {

class Client {
 public:
  using Duration = std::chrono::milliseconds;

  // Connects and shakes hands, again and again with growing, jittered pauses until `limit` has
  // passed: the server may not be there yet. `limit` also is the time limit of every later call
  // (set_limit). Errors: kNotFound (no such host), kTimedOut with what failed last.
  static Result<Client> connect(const std::string& host, std::uint16_t port, Duration limit);

  Client(Client&&) = default;
  Client& operator=(Client&&) = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() = default;

  void set_limit(Duration limit) { limit_ = limit; }

  // set, append, multi_set and queue_push have no answer on the wire: success means handed to the
  // kernel. ping() tells whether the server has applied them.
  Result<void> set(std::string_view key, std::string_view value);
  Result<void> append(std::string_view key, std::string_view tail);
  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs);
  Result<void> queue_push(std::string_view queue, std::string_view value);
  Result<void> ping();

  // Waits for the key, then reads it. kTimedOut where it does not appear; the client stays usable.
  Result<std::string> get(std::string_view key);
  // As get() for all of `keys`; values in their order.
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys);
  // Until all of `keys` exist, for `limit` at most; then kTimedOut, naming the keys, and the client
  // stays usable.
  Result<void> wait(std::span<const std::string> keys, Duration limit);
  Result<void> wait(std::string_view key, Duration limit);

  // The sum after adding. A missing key counts as 0. A value that is no number closes the
  // connection.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Puts `desired` where the key holds `expected` (or is missing and `expected` is empty). Answers
  // the value held afterwards; `expected` where the key is missing and stays so.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired);
  Result<bool> check(std::span<const std::string> keys);
  Result<bool> remove(std::string_view key);  // whether it was there
  Result<std::int64_t> num_keys();
  // Names in no order, queues not among them.
  Result<std::vector<std::string>> list_keys();

  Result<std::int64_t> queue_length(std::string_view queue);
  // Nothing where the queue is empty. To block, wait() for the queue's name first; another client
  // may still be faster.
  Result<std::optional<std::string>> queue_pop(std::string_view queue);

 private:
  using Fields = std::span<const std::string_view>;

  Client(std::string server, BlockingSocket socket, Duration limit)
      : server_(std::move(server)), socket_(std::move(socket)), limit_(limit) {}

  Result<void> shake_hands(Deadline deadline);
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
  std::string request_;  // scratch
  std::string doing_;    // what the current call attempts, for messages
};

}  // namespace ddprun::store
