// The cost of DataParallel in memory, and its bytes at construction. The kernel's own numbers count
// them in forked ranks.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/nn.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/training/data_parallel/module_state.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Some weights of `bytes` each.
struct WideImpl : torch::nn::Module {
  WideImpl(int count, std::int64_t bytes) {
    for (int i = 0; i < count; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i), torch::zeros(bytes / 4)));
  }
  // A graph whose gradients are as large as the weights, and nothing else is.
  torch::Tensor forward() {
    torch::Tensor sum = torch::zeros({});
    for (const torch::Tensor& weight : weights) sum = sum + weight.sum();
    return sum;
  }
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(Wide);

// A line "NAME: 123 kB" of a file of the kernel, in bytes.
std::int64_t kilobytes(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

std::int64_t peak_of_passes(Collective& collective, bool view) {
  Wide net(32, 2 * kMiB);
  DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
  const auto pass = [&] {
    net->zero_grad();
    parallel.forward(net).backward();
  };
  pass();
  pass();
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak counts from here on (proc(5))
  pass();
  pass();
  return kilobytes("/proc/self/status", "VmHWM");
}

// Case 12. Each rank's own weights, its part of the buckets and one gradient at a time are there in
// both modes. Copies have all gradients a second time.
TEST(Memory, GradientsInBucketsSaveASecondCopyOfThem) {
  constexpr std::int64_t kGradients = 64 * kMiB;
  void* memory = ::mmap(nullptr, 2 * sizeof(std::int64_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* peaks = static_cast<std::int64_t*>(memory);  // of rank 0, by mode
  // Processes of their own for each mode: freed memory stays in them.
  for (const bool view : {false, true}) {
    run_torch_ranks(2, [=](Collective& collective) {
      const std::int64_t peak = peak_of_passes(collective, view);
      if (collective.rank() == 0) peaks[view ? 1 : 0] = peak;
    });
  }
  std::printf("gradients of 64 MiB: peak %lld MiB as copies, %lld MiB as views\n",
              static_cast<long long>(peaks[0] / kMiB), static_cast<long long>(peaks[1] / kMiB));
  // The rest of the process's memory differs by some MiB from run to run.
  EXPECT_GT(peaks[0] - peaks[1], kGradients * 3 / 4);
  EXPECT_LT(peaks[0] - peaks[1], kGradients * 5 / 4);
  ::munmap(memory, 2 * sizeof(std::int64_t));
}

// Layers whose values are as large as their weights.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int layers) {
    for (int i = 0; i < layers; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones(kMiB / 4)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = torch::tanh(x * weight);
    return x.sum();
  }
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(Deep);

std::int64_t faults_of_passes(bool keep) {
  constexpr int kPasses = 20;
  const auto alone = make_alone_collective();
  Deep net(12);
  DataParallel parallel(net.ptr(), *alone, {.keep_freed_memory = keep});
  const auto x = torch::ones(kMiB / 4);
  const auto pass = [&] {
    net->zero_grad();
    parallel.forward(net, x).backward();
  };
  for (int i = 0; i < 10; ++i) pass();  // the heap grows to what a pass needs
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < kPasses; ++i) pass();
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  const auto record = parallel.log_record();
  EXPECT_EQ(record.numbers.at("keep_freed_memory"), keep ? 1 : 0);
  EXPECT_EQ(record.texts.at("freed_memory"), keep ? "stays in the process" : "as malloc likes");
  return after.ru_minflt - before.ru_minflt;
}

TEST(Memory, FreedGradientsStayInTheProcess) {
  run_torch_ranks(2, [](Collective& collective) {
    // In a process of its own each: the option is for good.
    const std::int64_t mine = faults_of_passes(/*keep=*/collective.rank() == 0);
    double numbers[2]{};
    numbers[collective.rank()] = static_cast<double>(mine);
    collective.sum(numbers);
    if (collective.rank() == 0)
      std::printf("page faults of 20 passes: %.0f with the option, %.0f without\n", numbers[0],
                  numbers[1]);
    EXPECT_LT(numbers[0] * 2, numbers[1]);
  });
}

TEST(Memory, IsLeftToTheEnvironmentWhereThatSetsMallocUp) {
  run_torch_ranks(1, [](Collective& collective) {
    ::setenv("MALLOC_TOP_PAD_", "131072", 1);
    Wide net(1, 4096);
    const DataParallel parallel(net.ptr(), collective);
    const auto record = parallel.log_record();
    EXPECT_EQ(record.numbers.at("keep_freed_memory"), 0);
    EXPECT_EQ(record.texts.at("freed_memory"), "as MALLOC_TOP_PAD_ says");
  });
}

// Case 15. PyTorch has at most two broadcasts under way, ours follow each other.
TEST(Memory, LargeStateTravelsInPieces) {
  constexpr std::int64_t kTensors = 6;
  constexpr std::int64_t kBytes = 100'000'000;
  // Rank 1's copy, a piece of each rank, and what the pieces pass through.
  if (kilobytes("/proc/meminfo", "MemAvailable") < std::int64_t{3} << 30)
    GTEST_SKIP() << "less than 3 GiB of memory are left";
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    std::vector<NamedTensor> state;
    for (int i = 0; i < kTensors; ++i) {
      state.push_back({"w" + std::to_string(i), torch::zeros(kBytes / 4)});
      if (collective.rank() == 0) state.back().tensor[kBytes / 4 - 1].fill_(i + 1);
    }
    broadcast_values(state, collective);
    EXPECT_GE(collective.broadcasts, 3);
    EXPECT_EQ(collective.most_at_once, 1);
    for (const std::size_t bytes : collective.broadcast_bytes) EXPECT_LE(bytes, kCoalescedBytes);
    for (int i = 0; i < kTensors; ++i)
      EXPECT_EQ(state[static_cast<std::size_t>(i)].tensor[kBytes / 4 - 1].item<int>(), i + 1);
  });
}

}  // namespace
}  // namespace ddprun::worker
