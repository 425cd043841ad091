// The memory of ShardedParallel: Adam on a model of 32 equal units.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <ddprun/optimizers.h>
#include <ddprun/sharded_parallel.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/nn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

constexpr int kLayers = 32;
constexpr std::int64_t kWidth = 700;
constexpr double kMiB = 1 << 20;

// A model, its units and its training.
class LayeredTraining {
 public:
  LayeredTraining(int layers, Collective& ranks) {
    std::vector<std::string> names;
    for (int i = 0; i < layers; ++i) {
      layers_.emplace_back(kWidth, kWidth);
      net_->push_back(layers_.back());
      names.push_back(std::to_string(i));
    }
    for (const at::Tensor& parameter : net_->parameters())
      bytes += static_cast<double>(parameter.nbytes());
    sharded.emplace(net_.ptr(), ranks, names);
    optimizer_.emplace(sharded->shards(), Adam::Options(1e-3));
  }

  at::Tensor forward() {
    at::Tensor x = torch::ones({1, kWidth});
    for (auto& layer : layers_) x = sharded->forward(layer, x);
    return x;
  }

  void step() {
    optimizer_->zero_grad();
    forward().sum().backward();
    sharded->step(*optimizer_);
  }

  const torch::nn::Sequential& net() const { return net_; }

  double bytes = 0;  // of the parameters
  std::optional<ShardedParallel> sharded;

 private:
  torch::nn::Sequential net_;
  std::vector<torch::nn::Linear> layers_;
  std::optional<Adam> optimizer_;
};

// "VmRSS:   1234 kB" of a file of /proc.
double bytes_in(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return 1024 * std::stod(line.substr(key.size()));
  }
  ADD_FAILURE() << file << " has no " << key;
  return 0;
}

// Counts the bytes of all tensors on the CPU: those that live now, and the most that lived at once.
class CountingAllocator final : public c10::Allocator {
 public:
  // For the rest of this process.
  CountingAllocator() { c10::SetCPUAllocator(this, /*priority=*/1); }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = inner_.allocate(bytes);
    live_ += bytes;
    for (std::size_t peak = peak_; peak < live_ && !peak_.compare_exchange_weak(peak, live_);) {
    }
    void* const data = memory.get();
    return {data, new Held{*this, bytes, std::move(memory)},
            [](void* held) { delete static_cast<Held*>(held); }, at::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  double live() const { return static_cast<double>(live_); }
  double peak() const { return static_cast<double>(peak_); }
  void forget_the_peak() { peak_ = live_.load(); }

 private:
  struct Held {
    Held(CountingAllocator& of, std::size_t counted, c10::DataPtr held)
        : allocator(of), bytes(counted), memory(std::move(held)) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Held(Held&&) = delete;
    Held& operator=(Held&&) = delete;
    ~Held() { allocator.live_ -= bytes; }

    CountingAllocator& allocator;
    std::size_t bytes;
    c10::DataPtr memory;
  };

  c10::Allocator& inner_ = *c10::GetCPUAllocator();
  std::atomic<std::size_t> live_ = 0;
  std::atomic<std::size_t> peak_ = 0;
};

// The proportional size of the mapping that `address` lies in: what ranks share counts once, over
// all of them.
double pss_around(const void* address) {
  std::ifstream lines("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin <= wanted && wanted < end;
    else if (inside && line.starts_with("Pss:"))
      return 1024 * std::stod(line.substr(4));
  }
  return 0;
}

double sum_over(Collective& ranks, double mine) {
  std::array values{mine};
  ranks.sum(values);
  return values[0];
}

// Parameters, gradients and two numbers of Adam for each: 4 S in all. Counted are all tensors,
// outputs and those in between as well. So is the collective's memory for the gradients of one
// unit.
TEST(ShardedMemory, IsAnNthAndOneUnitOverTcp) {
  for (const int world : {2, 3, 4}) {
    run_torch_ranks(tcp_ranks(world), [](Collective& ranks) {
      auto* const count = new CountingAllocator;  // tensors of the library may live until the end
      LayeredTraining training(kLayers, ranks);
      const double all = 4 * training.bytes;
      const double n = ranks.world_size();
      EXPECT_GE(count->peak(), training.bytes) << "the whole model was there";
      EXPECT_LE(count->live(), all / n / 2 + 0.1 * all);
      count->forget_the_peak();
      for (int step = 0; step < 3; ++step) training.step();
      const double unit = training.bytes / kLayers;
      const double peak = count->peak() + unit;
      // An N-th, the parameters and gradients of one unit, and 10 % of that.
      const double most = 1.1 * (all / n + 2 * unit);
      EXPECT_LE(peak, most);
      EXPECT_GE(peak, all / n);
      if (ranks.rank() == 0) {
        std::printf(
            "%.1f MiB of parameters, gradients and Adam, %d ranks: at most %.1f MiB at once "
            "(bound %.1f)\n",
            all / kMiB, ranks.world_size(), peak / kMiB, most / kMiB);
      }
    });
  }
}

// Memory that is in no file: other programs of the host share the pages of libraries, and come and
// go.
double own_pss() {
  const char* const rollup = "/proc/self/smaps_rollup";
  return bytes_in(rollup, "Pss_Anon:") + bytes_in(rollup, "Pss_Shmem:");
}

TEST(ShardedMemory, HasTheParametersOnceOnAHost) {
  for (const int world : {2, 3, 4}) {
    run_torch_ranks(world, [](Collective& ranks) {
      LayeredTraining(2, ranks).step();
      ::malloc_trim(0);
      ranks.barrier();
      const double before = sum_over(ranks, own_pss());
      LayeredTraining training(kLayers, ranks);
      {
        const torch::NoGradGuard no_grad;
        training.forward();
      }
      ranks.barrier();
      const auto parameters = training.net()->parameters();
      // One mapping has them all.
      const auto [low, high] = std::minmax_element(
          parameters.begin(), parameters.end(),
          [](const at::Tensor& a, const at::Tensor& b) { return a.data_ptr() < b.data_ptr(); });
      EXPECT_EQ(pss_around(low->data_ptr()), pss_around(high->data_ptr()));
      const double pss = sum_over(ranks, pss_around(low->data_ptr()));
      const double taken = sum_over(ranks, own_pss()) - before;
      ranks.barrier();  // nobody goes on before all have looked
      const double once = training.bytes;
      EXPECT_GE(pss, once);
      EXPECT_LE(pss, 1.1 * once);
      // Beside them each rank has memory for the gradients of one unit, and some MiB of its own.
      EXPECT_LE(taken, 1.1 * once + ranks.world_size() * (once / kLayers + 2 * kMiB));
      if (ranks.rank() == 0)
        std::printf(
            "%.1f MiB of parameters, %d ranks: Pss of their mapping %.1f MiB over all ranks, of "
            "all that was taken %.1f MiB\n",
            once / kMiB, ranks.world_size(), pss / kMiB, taken / kMiB);
    });
  }
}

}  // namespace
}  // namespace ddprun::worker
