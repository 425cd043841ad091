// One connection to a peer. It moves the bytes of an operation as far as the kernel takes or has
// them, and never blocks. It owns its socket. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_handle.h"
#include "worker/collective/tcp/tcp_operation.h"

namespace ddprun::worker {

// The message of a peer, or the state of its connection, in place of the operation's bytes.
struct TcpEvent {
  enum class Kind {
    kNone,
    kOther,     // `head`: the peer does something else
    kReset,     // `reset`
    kAbort,     // `text`: why it gave up
    kLeft,      // it destroyed its collective
    kEnded,     // `text`: how the connection ended
    kNonsense,  // bytes that no rank of this build sends
  };
  Kind kind = Kind::kNone;
  OperationHead head{};
  ResetNote reset{};
  std::string text;
};

class TcpLink {
 public:
  // A link to nobody, for the own rank.
  TcpLink() = default;
  // The socket must not block.
  explicit TcpLink(FileHandle socket);

  // The next operation begins. The last one must be complete or given up.
  void start() { begun_ = met_ = false; }

  // Each returns how many bytes moved. `event` stays as it is where there is none.
  std::size_t send(TcpOperation& operation, std::size_t peer, TcpEvent& event);
  std::size_t receive(TcpOperation& operation, std::size_t peer, TcpEvent& event);

  bool sent(const TcpOperation& operation, std::size_t peer) const {
    return begun_ && pending_.empty() && frame_left_ == 0 && operation.all_sent(peer);
  }
  bool received(const TcpOperation& operation, std::size_t peer) const {
    return met_ && operation.all_received(peer);
  }
  bool met() const { return met_; }
  // Returns the operation that the peer has begun last. `number` is 0 before the first.
  const OperationHead& last() const { return last_; }
  // The events of poll(2) that bring the operation on.
  short events(TcpOperation& operation, std::size_t peer) const;

  // Keeps what it still needs of an operation that is given up: the rest of a frame.
  void detach(const TcpOperation& operation, std::size_t peer);
  // Queues something beside operations. No operation may be under way, or it must be detached.
  void say(FrameKind kind, std::span<const std::byte> body);
  // Sends what is queued.
  void flush(TcpEvent& event) { send_frame({}, event); }
  bool flushed() const { return pending_.empty() && frame_left_ == 0; }
  // Reads and drops what a reset makes void. The peer's kReset ends it, and is an event.
  void discard(TcpEvent& event);
  // No more is sent. Bytes that the kernel has still travel.
  void end_sending();

  int descriptor() const { return socket_.get(); }

 private:
  std::size_t send_frame(std::span<const std::byte> body, TcpEvent& event);
  bool fill(TcpEvent& event);
  bool next_frame(FrameHead& head, TcpEvent& event);
  void take_word(const FrameHead& head, TcpOperation* operation, std::size_t peer, TcpEvent& event);
  void take_frame(const FrameHead& head, TcpOperation* operation, std::size_t peer,
                  TcpEvent& event);
  std::size_t take_data(std::span<std::byte> place, TcpEvent& event);
  std::size_t receive_data(TcpOperation& operation, std::size_t peer, TcpEvent& event);
  std::span<const std::byte> buffered() const {
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }

  FileHandle socket_;
  bool begun_ = false;  // our head of the operation is queued
  bool met_ = false;    // the peer's head of it has come
  OperationHead last_{};
  std::vector<std::byte> pending_;  // heads and words, in front of the frame's body
  std::size_t frame_left_ = 0;      // bytes of the body that are not sent
  std::size_t body_left_ = 0;       // bytes of the data frame that we read
  // The bytes that were read beyond the body.
  std::array<std::byte, 4096> buffer_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ddprun::worker
