// Plain threads in the two classes where gRPC's threads and the loop meet. For ThreadSanitizer,
// which sees nothing of gRPC itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/grpc/call_writer.h"
#include "rendezvous/grpc/loop_gate.h"
#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kThreads = 4;
constexpr int kEach = 2000;

template <typename Body>
void run_threads(Body body) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, PostInOrderToAnOwnerOnTheLoop) {
  boost::asio::io_context loop{1};
  std::vector<std::vector<int>> heard(kThreads);
  const auto gate = std::make_shared<LoopGate<std::vector<std::vector<int>>>>(loop, heard);
  std::thread others([&] {
    run_threads([&](int thread) {
      for (int i = 0; i < kEach; ++i)
        gate->post([=](auto& owner) { owner[static_cast<std::size_t>(thread)].push_back(i); });
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
  const auto gate = std::make_shared<LoopGate<int>>(*loop, *owner);
  std::atomic<bool> stop = false;
  std::thread others([&] {
    run_threads([&](int) {
      while (!stop) gate->post([](int& counted) { ++counted; });
    });
  });
  EXPECT_TRUE(run_until(*loop, [&] { return *owner > 100; }));
  gate->close();
  owner.reset();
  loop.reset();  // what was posted and not run goes with it
  stop = true;
  others.join();
  EXPECT_EQ(gate->owner(), nullptr);
}

// Sends from several threads. The thread that got a write goes on as long as there is one, as
// gRPC's callbacks do.
struct Writers {
  void perform(CallWriter<std::string>::Step step) {
    while (step.write != nullptr) {
      EXPECT_EQ(++writing, 1);
      EXPECT_EQ(*step.write, message);
      ++written;
      --writing;
      step = writer.written(true);
    }
    if (step.end) ++ends;
  }
  void send() {
    const auto step = writer.send(message);
    if (!step.overflow) ++taken;
    perform(step);
  }

  const std::string message = "a message that is too long for the string itself";
  CallWriter<std::string> writer;
  std::atomic<int> writing = 0;
  std::atomic<int> written = 0;
  std::atomic<int> taken = 0;
  std::atomic<int> ends = 0;
};

TEST(Threads, WriteOneAtATimeAndLoseNothing) {
  Writers writers;
  run_threads([&](int) {
    for (int i = 0; i < kEach; ++i) writers.send();
  });
  EXPECT_EQ(writers.written, writers.taken);
  EXPECT_TRUE(writers.writer.idle());
}

TEST(Threads, EndOnceWhileOthersSend) {
  Writers writers;
  run_threads([&](int thread) {
    for (int i = 0; i < kEach; ++i) {
      writers.send();
      if (thread < 2 && i == kEach / 2) writers.perform(writers.writer.close());
    }
  });
  EXPECT_EQ(writers.ends, 1);
  EXPECT_TRUE(writers.writer.idle());
}

}  // namespace
}  // namespace ddprun::rendezvous
