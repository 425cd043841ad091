#include "worker/training/sharded/task_queue.h"

#include <utility>

namespace ddprun::worker {

TaskQueue::TaskQueue() : thread_([this] { run(); }) {}

TaskQueue::~TaskQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

TaskQueue::Number TaskQueue::put(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  return ++put_;
}

void TaskQueue::wait(Number task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= task || error_ != nullptr; });
  if (done_ < task) std::rethrow_exception(error_);
}

void TaskQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    task = nullptr;
    lock.lock();
    if (error != nullptr) {
      error_ = error;
      changed_.notify_all();
      return;
    }
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace ddprun::worker
