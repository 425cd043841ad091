// A thread that does what it is given, one task after the other. For one thread, which puts tasks
// in and waits for them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ddprun::worker {

class TaskQueue {
 public:
  using Number = std::uint64_t;

  TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;
  TaskQueue(TaskQueue&&) = delete;
  TaskQueue& operator=(TaskQueue&&) = delete;
  // Waits for the task that is under way. Those behind it are not done.
  ~TaskQueue();

  // All that the task refers to must live until it is done.
  Number put(std::function<void()> task);
  // Returns when this task and all before it are done. Throws the error of one of them. No task is
  // done after that one, and each wait() for a later one throws it, too.
  void wait(Number task);
  void wait_for_all() { wait(put_); }

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  Number put_ = 0;  // of the thread that puts tasks in
  Number done_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddprun::worker
