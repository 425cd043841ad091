// Ranks on simulated GPUs: each is a thread with a GPU and a program's stream of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/collective/nccl/simulated_gpu.h"
#include "worker/collective/nccl/nccl_join.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::worker {

// A board in memory.
struct SharedTexts {
  std::mutex mutex;
  std::map<int, std::string> by_rank;
};
class MemoryBoard final : public DesyncBoard {
 public:
  MemoryBoard(std::shared_ptr<SharedTexts> texts, int rank)
      : texts_(std::move(texts)), rank_(rank) {}
  Result<void> post(std::string_view text) override {
    const std::lock_guard lock(texts_->mutex);
    texts_->by_rank[rank_] = text;
    return {};
  }
  Result<std::vector<std::string>> read(std::span<const int> ranks) override {
    const std::lock_guard lock(texts_->mutex);
    std::vector<std::string> read;
    for (const int rank : ranks) read.push_back(texts_->by_rank[rank]);
    return read;
  }

 private:
  std::shared_ptr<SharedTexts> texts_;
  int rank_;
};

inline Flat floats(const std::shared_ptr<std::byte>& memory, std::size_t count) {
  return {memory.get(), count, Dtype::kFloat32};
}

class SimulatedGpu : public ::testing::Test {
 protected:
  struct Options {
    int ranks = 1;
    std::chrono::milliseconds timeout{20'000};
    Ticket last_ticket = 0;
    std::function<NcclOptional(int rank)> optional = [](int) { return sim::all_optional(); };
    bool board = false;
    NcclLimits limits{};
    std::function<void()> give_back{};
    EndProcess end_process = [](int rank, const std::string& why, const std::string&) {
      ADD_FAILURE() << "rank " << rank << " has ended its process: " << why;
    };
  };
  // The state of a rank.
  struct Rank {
    int rank;
    cudaStream_t stream;  // the program's
    std::unique_ptr<Collective> collective;
    std::shared_ptr<cudaStream_t> current;                // the stream that the collective is told
    std::shared_ptr<std::map<int, cudaStream_t>> others;  // the program's on other GPUs

    // The collective's memory, with this rank's values, which the program's stream writes.
    std::shared_ptr<std::byte> filled(std::size_t count, float value) const {
      auto memory = collective->allocate(count * sizeof(float));
      sim::run_on(stream,
                  [=, numbers = reinterpret_cast<float*>(memory.get())] {
                    std::fill_n(numbers, count, value);
                  },
                  {sim::writes(memory.get())});
      return memory;
    }
    // When the program's stream has come so far.
    std::vector<float> read(const std::shared_ptr<std::byte>& memory, std::size_t count) const {
      cudaStreamSynchronize(stream);
      const auto* numbers = reinterpret_cast<const float*>(memory.get());
      return {numbers, numbers + count};
    }
  };

  void SetUp() override { sim::reset(); }
  void TearDown() override { EXPECT_EQ(faults(), ""); }

  // Returns what must not have happened since reset(), a line each.
  std::string faults() const {
    const sim::Controls& now = sim::controls();
    std::string lines;
    const auto none = [&](int count, const std::string& what) {
      if (count != 0) lines += what + "\n";
    };
    none(now.calls_at_once, "NCCL was called on two threads at once");
    none(now.calls_before_settled, "NCCL was called before it had settled");
    none(now.unformed_revokes, "a communicator was revoked before all had joined");
    none(now.wrong_device, "one GPU's memory or events met another's");
    none(now.freed_under_work, "memory was freed that a GPU still used");
    none(now.unordered, sim::disorder());
    none(now.outside, "a task worked behind the end of its memory");
    // After a failure nobody may wait for the GPU, and to free memory does.
    if (now.aborts == 0 && !leaves_memory_) none(now.blocks, "GPU memory is left");
    none(now.mixed_memory, "ranks gave registered and plain memory");
    none(now.left_registered, "memory was registered to the end");
    return lines;
  }

  bool leaves_memory_ = false;  // what a test leaves goes with the process

  static Result<Rank> join(int rank, const Options& options, Exchange& exchange,
                           const std::shared_ptr<SharedTexts>& texts) {
    cudaSetDevice(rank);
    cudaStream_t stream = sim::new_stream();
    const auto current = std::make_shared<cudaStream_t>(stream);
    const auto others = std::make_shared<std::map<int, cudaStream_t>>();
    const NcclParts parts{.job = {.rank = rank,
                                  .ranks = options.ranks,
                                  .gpu = rank,
                                  .timeout = options.timeout,
                                  .last_ticket = options.last_ticket},
                          .program = {.make = sim::new_stream,
                                      .current = [=] { return *current; },
                                      .give_back = options.give_back},
                          .optional = options.optional(rank),
                          .limits = options.limits,
                          .end_process = options.end_process,
                          .program_on = [=](int gpu) {
                            const OnGpu there(gpu);
                            cudaStream_t other = (*others)[gpu] = sim::new_stream();
                            return GpuProgram{.make = sim::new_stream,
                                              .current = [=] { return other; }};
                          }};
    auto board = options.board ? std::make_unique<MemoryBoard>(texts, rank) : nullptr;
    auto joined = join_nccl_on(parts, exchange, std::move(board));
    if (!joined) return joined.error();
    return Rank{rank, stream, std::move(*joined), current, others};
  }

  static void run(const Options& options, const std::function<void(Rank&)>& body) {
    PipeExchange exchange(options.ranks);
    const auto texts = std::make_shared<SharedTexts>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          auto joined = join(rank, options, exchange, texts);
          if (!joined) throw CollectiveError(joined.error().message());
          body(*joined);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const CollectiveError& error) {
      return error.what();
    }
    return {};
  }

  // Asks until `done`, for 20 s at most.
  static bool comes_true(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // The failure, when it is noticed.
  static std::string failure_of(Collective& collective) {
    std::string why;
    comes_true([&] {
      why = message_of([&] { collective.progress(); });
      return !why.empty();
    });
    return why;
  }
};

}  // namespace ddprun::worker
