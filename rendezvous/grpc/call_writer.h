// The sending side of one gRPC call. It keeps the messages in order, and lets one write be under
// way at a time. It ends the call exactly once, after everything that was queued before the end was
// written. It does not call gRPC: each function returns a Step, which is what its caller must do
// next.
//
// Any thread: the loop sends, and gRPC's threads report that a write is done. So it has a mutex. In
// the launcher only this, LoopGate, StreamServer and the log have one: only gRPC needs threads.
// Owned by the call.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

namespace ddprun::rendezvous {

// The most messages that wait for a peer to read. A round has a handful of messages, and a
// heartbeat is sent only if the queue is empty. So a full queue means that the peer is stuck; it is
// cut off.
inline constexpr std::size_t kMaxQueued = 64;
inline constexpr std::size_t kFewQueued = 4;

template <typename Message>
class CallWriter {
 public:
  // The next step of the caller, after the function returned and with no lock held.
  struct Step {
    const Message* write = nullptr;  // start to write this; it stays in place until written()
    bool end = false;                // end the call: no write is under way and none follows
    bool overflow = false;           // the peer is stuck, the message dropped: cancel the call
  };

  // Queues a message. Drops it silently after close() or abandon().
  Step send(Message message) {
    const std::lock_guard lock(mutex_);
    if (closed_) return {};
    if (queue_.size() >= kMaxQueued) return {.overflow = true};
    queue_.push_back(std::move(message));
    if (writing_) return {};
    return start();
  }

  // Call it when gRPC has done the write. If the write failed, the call is broken: the queue is
  // dropped and no message is taken any more.
  Step written(bool ok) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) drop();
    if (!queue_.empty()) return start();
    return end_once();
  }

  // No message follows those that are queued. The call ends when they are written.
  Step close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    return end_once();
  }

  // The call is broken. Drops the queue; the call ends when the write under way is done.
  Step abandon() {
    const std::lock_guard lock(mutex_);
    drop();
    return end_once();
  }

  // Few messages wait, the one under way included: a peer that reads will get one more soon.
  bool has_room() const {
    const std::lock_guard lock(mutex_);
    return queue_.size() < kFewQueued;
  }

  // Nothing is queued and no write is under way.
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  // Calls `start` unless the call was ended. gRPC may free its side of the call after the end, but
  // not before. The lock keeps the end away while `start` runs. For what the loop does with a call
  // besides writes. `start` must not use this writer.
  template <typename Start>
  void while_alive(Start start) {
    const std::lock_guard lock(mutex_);
    if (!ended_) start();
  }

 private:
  Step start() {
    writing_ = true;
    return {.write = &queue_.front()};
  }
  // Ends the call if no message is left and it was not ended before: gRPC allows one end.
  Step end_once() {
    if (!closed_ || ended_ || !queue_.empty()) return {};
    ended_ = true;
    return {.end = true};
  }
  // Keeps the message under way: gRPC reads it until it reports the write.
  void drop() {
    closed_ = true;
    queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
  }

  mutable std::mutex mutex_;
  // While writing_, front() is under way. A deque, because adding to it moves no other element.
  std::deque<Message> queue_;
  bool writing_ = false;
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace ddprun::rendezvous
