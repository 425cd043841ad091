// Plain threads in the two places where gRPC's threads and the loop meet, for ThreadSanitizer: it
// sees nothing of gRPC.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/border.h"
#include "rendezvous/outbox.h"
#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kThreads = 4;
constexpr int kEach = 2000;

template <typename Body>
void run_threads(Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, PostInOrderToAnOwnerOnTheLoop) {
  boost::asio::io_context loop{1};
  std::vector<std::vector<int>> heard(kThreads);
  const auto border = std::make_shared<Border<std::vector<std::vector<int>>>>(loop, heard);
  std::thread others([&] {
    run_threads([&](int thread) {
      for (int i = 0; i < kEach; ++i)
        border->post([=](auto& owner) { owner[static_cast<std::size_t>(thread)].push_back(i); });
    });
  });
  const auto all = [&] {
    return std::ranges::all_of(heard, [](const auto& one) { return one.size() == kEach; });
  };
  EXPECT_TRUE(run_until(loop, all));
  others.join();
  for (const auto& one : heard) EXPECT_TRUE(std::ranges::is_sorted(one));
}

TEST(Threads, PostNowhereOnceTheOwnerAndItsLoopAreGone) {
  std::optional<boost::asio::io_context> loop(1);
  auto owner = std::make_unique<int>(0);
  const auto border = std::make_shared<Border<int>>(*loop, *owner);
  std::atomic<bool> stop = false;
  std::thread others([&] {
    run_threads([&](int) {
      while (!stop) border->post([](int& counted) { ++counted; });
    });
  });
  EXPECT_TRUE(run_until(*loop, [&] { return *owner > 100; }));
  border->close();
  owner.reset();
  loop.reset();  // what was posted and not run goes with it
  stop = true;
  others.join();
  EXPECT_EQ(border->owner(), nullptr);
}

// Several threads send; one of them at a time holds the write, as gRPC's callbacks do, and one ends
// the stream.
TEST(Threads, WriteOneAtATimeAndEndOnce) {
  Outbox<std::string> outbox;
  std::atomic<int> writing = 0;
  std::atomic<int> written = 0;
  std::atomic<int> ends = 0;
  const auto perform = [&](Outbox<std::string>::Step step) {
    while (step.write != nullptr) {
      EXPECT_EQ(++writing, 1);
      EXPECT_EQ(*step.write, "a message that is too long for the string itself");
      ++written;
      --writing;
      step = outbox.written(true);
    }
    if (step.end) ++ends;
  };
  std::atomic<int> taken = 0;
  run_threads([&](int thread) {
    for (int i = 0; i < kEach; ++i) {
      const auto step = outbox.send("a message that is too long for the string itself");
      if (!step.overflow) ++taken;
      perform(step);
    }
    if (thread == 0) perform(outbox.close());
  });
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(outbox.idle());
  EXPECT_GE(written, kEach / 2);
  EXPECT_LE(written, taken);  // those after the end are not taken
}

}  // namespace
}  // namespace ddprun::rendezvous
