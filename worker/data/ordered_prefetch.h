// Reads numbered things ahead, in threads of its own. Gives them in the order of their numbers,
// whichever thread is done first. It knows nothing of what is read. The thread that made it calls
// next() and destroys it; `read` runs in the reader threads, several at once.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ddprun::worker {

class OrderedPrefetch {
 public:
  using Item = std::shared_ptr<void>;
  using Read = std::function<Item(std::size_t number)>;

  // Reads items 0 … count-1, at most `ahead` of them beyond those that next() has given. Without
  // threads next() itself reads. All that `read` refers to must outlive this.
  OrderedPrefetch(std::size_t count, std::size_t threads, std::size_t ahead, Read read)
      : count_(count), read_(std::move(read)), slots_(std::max<std::size_t>(ahead, 1)) {
    threads_.reserve(std::min(threads, count));
    try {
      for (std::size_t i = 0; i < std::min(threads, count); ++i)
        threads_.emplace_back([this] { read_ahead(); });
    } catch (...) {  // no more threads can be had: those that wait for room must end
      stop();
      throw;
    }
  }
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;
  OrderedPrefetch(OrderedPrefetch&&) = delete;
  OrderedPrefetch& operator=(OrderedPrefetch&&) = delete;
  // Waits for the reads that are under way. The others do not begin.
  ~OrderedPrefetch() { stop(); }

  // The next item; null after the last one. Throws what `read` threw for this item, and nothing
  // follows it.
  Item next() {
    if (threads_.empty()) return given_ < count_ ? read_in_place() : nullptr;
    std::unique_lock lock(mutex_);
    if (given_ >= count_) return nullptr;
    Slot& slot = slots_[given_ % slots_.size()];
    filled_.wait(lock, [&slot] { return slot.item || slot.error; });
    ++given_;
    if (slot.error) {
      count_ = 0;
      room_.notify_all();
      std::rethrow_exception(slot.error);
    }
    Item item = std::exchange(slot.item, nullptr);
    room_.notify_one();
    return item;
  }

 private:
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      count_ = 0;
    }
    room_.notify_all();
  }

  struct Slot {
    Item item;
    std::exception_ptr error;
  };

  Item read_in_place() {
    const std::size_t number = given_++;
    try {
      return read_(number);
    } catch (...) {  // any error ends the reading, and the caller gets it
      count_ = 0;
      throw;
    }
  }

  void read_ahead() {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, [this] { return begun_ >= count_ || begun_ < given_ + slots_.size(); });
      if (begun_ >= count_) return;
      const std::size_t number = begun_++;
      lock.unlock();
      Slot read;
      try {
        read.item = read_(number);
      } catch (...) {  // it crosses to the thread that calls next()
        read.error = std::current_exception();
      }
      lock.lock();
      slots_[number % slots_.size()] = std::move(read);
      filled_.notify_one();
    }
  }

  std::size_t count_;  // 0 ends the threads
  Read read_;
  std::mutex mutex_;  // for all but read_ and threads_
  std::condition_variable room_, filled_;
  std::vector<Slot> slots_;  // item n is in slot n modulo their number
  std::size_t begun_ = 0;    // reads that have begun
  std::size_t given_ = 0;
  std::vector<std::jthread> threads_;  // the last member: gone before what they use
};

}  // namespace ddprun::worker
