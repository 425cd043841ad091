// A blocking TCP connection. Every call ends by a deadline. It uses plain sockets and no loop, for
// programs that have none. It knows nothing of the store's protocol. One thread at a time. The
// object owns its descriptor. After an error destroy it. A part of a request may be sent, or a part
// of an answer read. So the next bytes would make no sense.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun::store {

// Deadlines are on the steady clock: a change of the machine's date must not cut or stretch a wait.
using Deadline = std::chrono::steady_clock::time_point;

class BlockingSocket {
 public:
  // Tries each address of `host` once, in turn. A numeric address is used as it is and never looked
  // up. A name is looked up; the resolver's own configuration limits that time, `deadline` does
  // not. Errors: kNotFound (no such host), else the error of the last address: kUnavailable or
  // kTimedOut.
  static Result<BlockingSocket> connect(const std::string& host, std::uint16_t port,
                                        Deadline deadline);

  BlockingSocket(BlockingSocket&& other) noexcept;
  BlockingSocket& operator=(BlockingSocket&& other) noexcept;
  BlockingSocket(const BlockingSocket&) = delete;
  BlockingSocket& operator=(const BlockingSocket&) = delete;
  ~BlockingSocket();

  // The own address of the connection, numeric. Empty where the kernel does not tell.
  std::string local_address() const;

  // Returns when the kernel has taken all of `bytes`; the peer may not have read them yet. Errors:
  // kUnavailable (connection lost), kTimedOut.
  Result<void> send(std::string_view bytes, Deadline deadline);

  // Fills all of `into`. Errors: as send().
  Result<void> receive(std::span<char> into, Deadline deadline);

  // True if receive() will not wait for its first byte, or it will find the end of the connection.
  // False if `deadline` passed first; the socket stays usable.
  bool wait_readable(Deadline deadline) const {
    return !early_.empty() || wait_for(kReadable, deadline);
  }

 private:
  // Values of <poll.h>, which this header does not include.
  static constexpr short kReadable = 0x001;  // POLLIN
  static constexpr short kWritable = 0x004;  // POLLOUT

  explicit BlockingSocket(int descriptor) : descriptor_(descriptor) {}

  // False if `deadline` passed before one of `events` came.
  bool wait_for(short events, Deadline deadline) const;
  Result<void> finish_connect(Deadline deadline) const;
  // As wait_for(), but a passed deadline is kTimedOut.
  Result<void> pause(short events, Deadline deadline) const;

  // Moves bytes from early_ to the front of `into`. Returns how many.
  std::size_t take_early(std::span<char> into);
  Result<std::size_t> receive_some(std::span<char> into, Deadline deadline) const;

  int descriptor_ = -1;
  // Bytes that were received beyond what the caller asked for. Those before early_begin_ are used
  // up.
  std::string early_;
  std::size_t early_begin_ = 0;
};

}  // namespace ddprun::store
