// A blocking TCP connection whose every call ends by a deadline. Plain sockets, no loop: for
// programs that have none. Knows nothing of the protocol. One thread at a time. After an error the
// socket is useless: bytes of a frame may be missing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "proto/result.h"

namespace ddprun::store {

using Deadline = std::chrono::steady_clock::time_point;

class BlockingSocket {
 public:
  // One attempt to connect to each address of `host` in turn. A numeric address is used as it is; a
  // name is looked up, and that look-up alone is bounded by the resolver's configuration, not by
  // `deadline`. Errors: kNotFound (no such host), kUnavailable, kTimedOut.
  static Result<BlockingSocket> connect(const std::string& host, std::uint16_t port,
                                        Deadline deadline);

  BlockingSocket(BlockingSocket&& other) noexcept;
  BlockingSocket& operator=(BlockingSocket&& other) noexcept;
  BlockingSocket(const BlockingSocket&) = delete;
  BlockingSocket& operator=(const BlockingSocket&) = delete;
  ~BlockingSocket();

  // Hands all of `bytes` to the kernel. Errors: kUnavailable (connection lost), kTimedOut.
  Result<void> send(std::string_view bytes, Deadline deadline);

  // Fills `into`. Errors: as send().
  Result<void> receive(std::span<char> into, Deadline deadline);

  // True once bytes (or the end of the socket) can be read; false where `deadline` passed first.
  bool wait_readable(Deadline deadline) const {
    return !early_.empty() || wait_for(kReadable, deadline);
  }

 private:
  static constexpr short kReadable = 0x001;  // POLLIN
  static constexpr short kWritable = 0x004;  // POLLOUT

  explicit BlockingSocket(int descriptor) : descriptor_(descriptor) {}

  bool wait_for(short events, Deadline deadline) const;
  Result<void> finish_connect(Deadline deadline) const;
  Result<void> pause(short events, Deadline deadline) const;

  std::size_t take_early(std::span<char> into);
  Result<std::size_t> receive_some(std::span<char> into, Deadline deadline) const;

  int descriptor_ = -1;
  // Bytes received beyond what was asked for; those before early_begin_ are used up.
  std::string early_;
  std::size_t early_begin_ = 0;
};

}  // namespace ddprun::store
