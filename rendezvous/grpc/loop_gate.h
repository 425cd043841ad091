// How gRPC's threads get into the loop: they post a handler here, and have no other way. A call
// of gRPC may outlive the object that it works for (the owner), and even the loop. So a call
// holds a LoopGate instead of its owner. The gate posts to the loop while the owner lives; after
// close() it drops what it gets. Made and closed by the owner, shared with its calls.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <utility>

namespace ddprun::rendezvous {

template <typename Owner>
class LoopGate : public std::enable_shared_from_this<LoopGate<Owner>> {
 public:
  LoopGate(boost::asio::io_context& loop, Owner& owner) : loop_(&loop), owner_(&owner) {}

  // Any thread. `handle(Owner&)` will run on the loop's thread, in the order of posting. It is
  // dropped if the gate is closed by then.
  template <typename Handler>
  void post(Handler handle) {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return;
    // Looks at owner_ again when it runs: the gate may be closed between the post and the run.
    boost::asio::post(*loop_, [self = this->shared_from_this(), handle = std::move(handle)] {
      if (self->owner_ != nullptr) handle(*self->owner_);
    });
  }

  // Loop's thread. No handler runs after it, and no thread uses the loop through this gate.
  void close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    owner_ = nullptr;
  }

  // Loop's thread. Null once closed.
  Owner* owner() const { return owner_; }

 private:
  std::mutex mutex_;  // guards loop_: close() waits for a post() that is using it
  boost::asio::io_context* loop_;
  Owner* owner_;  // touched on the loop's thread only
};

}  // namespace ddprun::rendezvous
