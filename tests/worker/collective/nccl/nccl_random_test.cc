// Programs of operations and kernels, by chance. The NCCL collective on simulated GPUs gives what a
// model of plain arrays says. It orders all accesses that meet in memory. A program that fails is
// made shorter, and printed. Its seed makes the same program; pauses of streams differ.
// DDPRUN_NCCL_PROGRAMS: how many, and a single one is printed. DDPRUN_NCCL_FIRST: the first seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/number_of.h"
#include "tests/support/under_tsan.h"
#include "tests/worker/collective/nccl/random_program.h"
#include "tests/worker/collective/nccl/simulated_ranks.h"

namespace ddprun::worker {
namespace {

// Calls `use` with a pointer of the type to the memory.
template <typename Use>
void typed(Dtype dtype, std::byte* memory, const Use& use) {
  if (dtype == Dtype::kFloat32) return use(reinterpret_cast<float*>(memory));
  if (dtype == Dtype::kFloat64) return use(reinterpret_cast<double*>(memory));
  if (dtype == Dtype::kInt32) return use(reinterpret_cast<std::int32_t*>(memory));
  use(reinterpret_cast<std::int64_t*>(memory));
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

constexpr int kSteps = 40;

int lines_with(const std::string& words, const std::string& text) {
  int found = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++found;
  return found;
}

int ranks_of(std::uint64_t seed) {
  return std::array{2, 3, 2, 4, 2, 3, 8, 2}[seed % 8] * (seed % 64 == 6 ? 2 : 1);
}

}  // namespace

class NcclRandomTest : public SimulatedGpu {
 protected:
  // One rank that runs a program.
  class Runner {
   public:
    Runner(Rank& rank, const std::vector<Expected>& expected)
        : rank_(rank), streams_{rank.stream, sim::new_stream()} {
      for (const Expected& one : expected) expected_[one.step] = &one;
      for (std::size_t i = 0; i < kBuffers; ++i)
        buffers_[i] = rank.collective->allocate(bytes_of(i));
    }

    void take(const Step& step);
    // The first number that is not the model's.
    const std::string& trouble() const { return trouble_; }

   private:
    static std::size_t bytes_of(std::size_t buffer) {
      return kElements * size_of(kBufferTypes[buffer]);
    }
    cudaStream_t stream() const { return *rank_.current; }
    Flat range(const Step& step) const {
      const Dtype dtype = kBufferTypes[step.buffer];
      return {buffers_[step.buffer].get() + step.begin * size_of(dtype), step.end - step.begin,
              dtype};
    }
    void kernel(const Step& step) const;
    Ticket launch(const Step& step) const;
    void switch_stream();
    void compare(const Step& step);
    void graph(const Step& step) const;
    void gather(const Step& step);
    void split(const Step& step);
    void expect(const Step& step, bool well, const std::string& what) {
      if (!well && trouble_.empty())
        trouble_ = "rank " + std::to_string(rank_.rank) + ", step " + std::to_string(step.number) +
                   ": " + what;
    }

    Rank& rank_;
    std::array<cudaStream_t, 2> streams_;
    std::size_t on_ = 0;  // of them
    std::array<std::shared_ptr<std::byte>, kBuffers> buffers_;
    std::map<int, Ticket> tickets_;
    std::map<int, const Expected*> expected_;
    std::string trouble_;
  };

  // Returns what went wrong, or the empty text. `fails_at`: the step before which NCCL fails.
  static std::string run_program(const Program& program, std::optional<std::size_t> fails_at = {});
  Program shorter(Program program) const;
};

void NcclRandomTest::Runner::kernel(const Step& step) const {
  const Flat flat = range(step);
  sim::run_on(stream(),
              [flat, step, rank = rank_.rank] {
                typed(flat.dtype, static_cast<std::byte*>(flat.data), [&](auto* values) {
                  using T = std::remove_pointer_t<decltype(values)>;
                  for (std::size_t i = 0; i < flat.count; ++i) {
                    const auto before = static_cast<std::int64_t>(values[i]);
                    values[i] =
                        static_cast<T>(kernel_value(before, rank, step.salt, step.begin + i));
                  }
                });
              },
              {sim::writes(flat.data, flat.bytes())});
}

Ticket NcclRandomTest::Runner::launch(const Step& step) const {
  const Flat flat = range(step);
  if (step.exchanges) return rank_.collective->launch_all_to_all(flat, step.transfers);
  if (step.gathers) return rank_.collective->launch_all_gather(flat, step.parts);
  if (step.scatters)
    return rank_.collective->launch_reduce_scatter(flat, step.parts, step.reduction);
  return rank_.collective->launch(flat, step.reduction);
}

// As a program does: the other stream goes on where this one is.
void NcclRandomTest::Runner::switch_stream() {
  cudaEvent_t here = nullptr;
  check(cudaEventCreateWithFlags(&here, cudaEventDisableTiming));
  check(cudaEventRecord(here, stream()));
  on_ = 1 - on_;
  *rank_.current = streams_[on_];
  check(cudaStreamWaitEvent(stream(), here, 0));
  check(cudaEventDestroy(here));
}

void NcclRandomTest::Runner::compare(const Step& step) {
  std::vector<std::byte> host(bytes_of(step.buffer));
  check(cudaMemcpyAsync(host.data(), buffers_[step.buffer].get(), host.size(),
                        cudaMemcpyDeviceToHost, stream()));
  check(cudaStreamSynchronize(stream()));
  rank_.collective->check();
  const auto& numbers = expected_.at(step.number)->by_rank[static_cast<std::size_t>(rank_.rank)];
  typed(kBufferTypes[step.buffer], host.data(), [&](const auto* values) {
    for (std::size_t i = 0; i < kElements; ++i) {
      if (!numbers[i]) continue;
      const auto found = static_cast<std::int64_t>(values[i]);
      expect(step, found == *numbers[i],
             "element " + std::to_string(i) + " is " + std::to_string(found) + ", expected " +
                 std::to_string(*numbers[i]));
    }
  });
}

// A capture ends also after a failure: NCCL waits for its graph.
void NcclRandomTest::Runner::graph(const Step& step) const {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
  try {
    kernel(step);
    rank_.collective->wait(rank_.collective->launch(range(step), step.reduction));
  } catch (const CollectiveError&) {
    cudaStreamEndCapture(stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream(), &graph));
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < step.repeats; ++i) check(cudaGraphLaunch(exec, stream()));
  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
}

void NcclRandomTest::Runner::gather(const Step& step) {
  const auto blob_of = [&](int rank) {
    return std::vector<std::byte>(static_cast<std::size_t>(rank * (step.salt % 7)),
                                  static_cast<std::byte>(step.salt + rank));
  };
  const auto all = rank_.collective->all_gather_bytes(blob_of(rank_.rank));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    expect(step, all[rank] == blob_of(static_cast<int>(rank)),
           "other bytes of rank " + std::to_string(rank));
}

void NcclRandomTest::Runner::split(const Step& step) {
  const auto group = rank_.collective->split(rank_.rank % 2, rank_.rank);
  const auto memory = group->allocate(sizeof(float));
  auto* const value = reinterpret_cast<float*>(memory.get());
  sim::run_on(stream(), [=, salt = step.salt] { *value = static_cast<float>(salt); },
              {sim::writes(value)});
  group->wait(group->launch_sum({value, 1, Dtype::kFloat32}));
  float sum = 0;
  check(cudaMemcpyAsync(&sum, value, sizeof sum, cudaMemcpyDeviceToHost, stream()));
  check(cudaStreamSynchronize(stream()));
  group->check();
  expect(step, sum == static_cast<float>(step.salt * group->world_size()),
         "another sum of a group");
}

void NcclRandomTest::Runner::take(const Step& step) {
  Collective& collective = *rank_.collective;
  switch (step.kind) {
    case StepKind::kKernel:
      return kernel(step);
    case StepKind::kLaunch:
      tickets_[step.number] = launch(step);
      return;
    case StepKind::kWait:
      return collective.wait(tickets_.at(step.launch));
    case StepKind::kBroadcast:
      return collective.broadcast(range(step), step.peer);
    case StepKind::kSend:
      if (step.peer == rank_.rank) collective.send(range(step), step.other);
      if (step.other == rank_.rank) collective.receive(range(step), step.peer);
      return;
    case StepKind::kBarrier:
      return collective.barrier();
    case StepKind::kGather:
      return gather(step);
    case StepKind::kSwitchStream:
      return switch_stream();
    case StepKind::kReplace:
      // Dropped first: allocate() makes our stream wait for the sums, and they would be over.
      buffers_[step.buffer].reset();
      buffers_[step.buffer] = collective.allocate(bytes_of(step.buffer));
      return;
    case StepKind::kCompare:
      return compare(step);
    case StepKind::kGraph:
      return graph(step);
    case StepKind::kSplit:
      return split(step);
  }
}

std::string NcclRandomTest::run_program(const Program& program,
                                        std::optional<std::size_t> fails_at) {
  const auto expected = expected_of(program);
  if (!expected) return "no program";
  sim::reset();
  sim::controls().stagger = true;
  sim::controls().gpus = std::max<int>(sim::controls().gpus, program.ranks);
  std::mutex mutex;
  std::string troubles;
  const auto say = [&](const std::string& line) {
    if (line.empty()) return;
    const std::lock_guard lock(mutex);
    troubles += line + "\n";
  };
  run({.ranks = program.ranks}, [&](Rank& rank) {
    Runner runner(rank, *expected);
    try {
      if (fails_at) rank.collective->barrier();  // all have joined
      for (std::size_t i = 0; i < program.steps.size(); ++i) {
        if (fails_at && i == *fails_at && rank.rank == 0)
          sim::controls().async_error = ncclRemoteError;
        runner.take(program.steps[i]);
      }
      // A rank that is idle hears of it in its next operation.
      if (fails_at) rank.collective->barrier();
    } catch (const std::exception& error) {
      say(error.what());
    }
    say(runner.trouble());
  });
  return troubles;
}

// Leaves out one step after the other, from the end, if it fails without that one, too.
Program NcclRandomTest::shorter(Program program) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (std::size_t i = program.steps.size(); i-- > 0;) {
    if (std::chrono::steady_clock::now() > until) break;  // each that hangs takes 20 s
    Program without = program;
    without.steps.erase(without.steps.begin() + static_cast<std::ptrdiff_t>(i));
    if (!expected_of(without)) continue;
    if (!(run_program(without) + faults()).empty()) program = std::move(without);
  }
  return program;
}

TEST_F(NcclRandomTest, ProgramsGiveWhatAModelSays) {
  const auto first = support::number_of("DDPRUN_NCCL_FIRST", std::uint64_t{0});
  const std::uint64_t programs =
      support::number_of("DDPRUN_NCCL_PROGRAMS", support::less_under_tsan(200U, 40U));
  ASSERT_GT(programs, 0U) << "DDPRUN_NCCL_PROGRAMS: expected a number above 0";
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    const Program program = random_program(seed, ranks_of(seed), kSteps);
    if (programs == 1) std::cout << text_of(program) << std::endl;
    const std::string trouble = run_program(program) + faults();
    if (trouble.empty()) continue;
    std::cout << "seed " << seed << ": " << trouble << std::endl;
    FAIL() << "seed " << seed << ": " << trouble << text_of(shorter(program));
  }
}

// NCCL fails somewhere: each rank hears of it, and nothing is used after it is gone.
TEST_F(NcclRandomTest, ProgramsThatFailSayWhy) {
  leaves_memory_ = true;
  for (std::uint64_t seed = 0; seed < support::less_under_tsan(40U, 10U); ++seed) {
    const Program program = random_program(seed, ranks_of(seed % 6), kSteps);
    const std::string trouble = run_program(program, seed % program.steps.size());
    EXPECT_EQ(std::ranges::count(trouble, '\n'), program.ranks)
        << "seed " << seed << ": " << trouble;
    EXPECT_EQ(lines_with("remote process exited", trouble), program.ranks)
        << "seed " << seed << ": " << trouble;
    EXPECT_EQ(faults(), "") << "seed " << seed;
  }
}

}  // namespace ddprun::worker
