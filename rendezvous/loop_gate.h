// Where gRPC's threads enter the loop: by post and nothing else. A reactor may outlive the object
// on the loop that it works for (and the loop itself), so what it holds is this: it posts to the
// owner while there is one and to nowhere after.
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

  // Any thread. `handle(Owner&)` runs on the loop, in the order posted, unless the gate is closed
  // by then.
  template <typename Handler>
  void post(Handler handle) {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return;
    boost::asio::post(*loop_, [self = this->shared_from_this(), handle = std::move(handle)] {
      if (self->owner_ != nullptr) handle(*self->owner_);
    });
  }

  // Loop's thread. No handler runs from here on.
  void close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    owner_ = nullptr;
  }

  // Loop's thread: nothing once closed.
  Owner* owner() const { return owner_; }

 private:
  std::mutex mutex_;  // guards loop_ against the owner's end
  boost::asio::io_context* loop_;
  Owner* owner_;  // touched on the loop's thread only
};

}  // namespace ddprun::rendezvous
