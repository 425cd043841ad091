// The sending side of one gRPC stream: messages in order, one write under way at a time, and an end
// that comes exactly once, after everything queued before it was written. Any thread: the loop
// sends, gRPC's threads report that a write is done. With loop_gate.h it is where the launcher holds a
// mutex, because gRPC's callbacks are where other threads come from.
//
// It calls no gRPC itself: each function answers what its caller must now start.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

namespace ddprun::rendezvous {

// Messages queued for a peer that does not read. HostMessage are a handful a round and beats are only
// added to an empty queue, so a full one means a peer that is stuck: it is cut off.
inline constexpr std::size_t kMaxQueued = 64;

template <typename Message>
class CallWriter {
 public:
  // What the caller must do after a call, outside of any lock.
  struct Step {
    const Message* write = nullptr;  // start writing this; it stays where it is until written()
    bool end = false;                // end the stream: nothing is under way, nothing follows
    bool overflow = false;           // the message was dropped: the peer is stuck
  };

  Step send(Message message) {
    const std::lock_guard lock(mutex_);
    if (closed_) return {};
    if (queue_.size() >= kMaxQueued) return {.overflow = true};
    queue_.push_back(std::move(message));
    if (writing_) return {};
    return start();
  }

  // The write is done. On failure the stream is broken: what is queued is dropped and no message is
  // taken any more.
  Step written(bool ok) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) drop();
    if (!queue_.empty()) return start();
    return end_once();
  }

  // No message after those queued.
  Step close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    return end_once();
  }

  // The stream is broken: nothing more can be sent.
  Step abandon() {
    const std::lock_guard lock(mutex_);
    drop();
    return end_once();
  }

  bool idle() const {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  // Calls `start` unless the stream was ended: until then gRPC's side of it is alive. For what the
  // loop starts besides writes.
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
  Step end_once() {
    if (!closed_ || ended_ || !queue_.empty()) return {};
    ended_ = true;
    return {.end = true};
  }
  void drop() {
    closed_ = true;
    queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
  }

  mutable std::mutex mutex_;
  // front() is under way while writing_; a deque moves no element it keeps.
  std::deque<Message> queue_;
  bool writing_ = false;
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace ddprun::rendezvous
