// The thread beside the training. ThreadSanitizer looks on.
#include "worker/training/sharded/task_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ddprun::worker {
namespace {

TEST(TaskQueue, DoesAllInTheirOrder) {
  std::vector<int> done;
  TaskQueue queue;
  TaskQueue::Number last = 0;
  for (int i = 0; i < 1000; ++i) last = queue.put([&done, i] { done.push_back(i); });
  queue.wait(last);
  ASSERT_EQ(done.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
}

TEST(TaskQueue, GivesTheErrorToAllWhoWaitForLaterTasks) {
  TaskQueue queue;
  bool done = false;
  const auto good = queue.put([] {});
  const auto bad = queue.put([] { throw std::runtime_error("no"); });
  const auto behind = queue.put([&done] { done = true; });
  EXPECT_THROW(queue.wait(behind), std::runtime_error);
  EXPECT_THROW(queue.wait(bad), std::runtime_error);
  EXPECT_NO_THROW(queue.wait(good));
  EXPECT_FALSE(done);
}

TEST(TaskQueue, EndsWithTheTaskUnderWay) {
  std::promise<void> begun;
  std::promise<void> go_on;
  bool ended = false;
  auto queue = std::make_unique<TaskQueue>();
  queue->put([&] {
    begun.set_value();
    go_on.get_future().wait();
    ended = true;
  });
  begun.get_future().wait();
  std::thread other([&go_on] { go_on.set_value(); });
  queue.reset();
  other.join();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace ddprun::worker
