// The NCCL collective on one GPU. It is a world of one, as the NCCL that torch 2.11 brings refuses
// two ranks on a device.
#include "worker/collective/nccl/nccl_collective.h"

#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <ddprun/tensor_collective.h>
#include <ddprun/zero_optimizer.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "worker/collective/nccl/nccl_optional.h"
#include "worker/startup/pipe_exchange.h"

// Calls with which a host waits for the GPU, of all threads but the watcher's.
static std::atomic<int> host_waits = 0;

template <typename... Arguments>
static cudaError_t count_and_forward(const char* name, Arguments... arguments) {
  std::array<char, 16> thread{};
  pthread_getname_np(pthread_self(), thread.data(), thread.size());
  if (std::string_view(thread.data()) != "nccl_watcher") ++host_waits;
  using Function = cudaError_t(Arguments...);
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name))(arguments...);
}

// They stand before those of libcudart, also for LibTorch.
extern "C" cudaError_t cudaDeviceSynchronize() {
  return count_and_forward("cudaDeviceSynchronize");
}
extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return count_and_forward("cudaStreamSynchronize", stream);
}
extern "C" cudaError_t cudaEventQuery(cudaEvent_t event) {
  return count_and_forward("cudaEventQuery", event);
}

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    join({.timeout = std::chrono::seconds(60)});
  }

  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const CollectiveError& error) {
      return error.what();
    }
    return {};
  }

  void join(const NcclJob& job) {
    PipeExchange exchange(1);
    auto joined = join_nccl(job, exchange);
    ASSERT_TRUE(joined) << joined.error().message();
    collective_ = std::move(*joined);
  }

  // Launches a sum of memory that the current stream fills with `value`, a while from now.
  Ticket sum_filled_late(std::byte* memory, float value) {
    const c10::cuda::CUDAStreamGuard producing(c10::cuda::getStreamFromPool());
    at::cuda::sleep(kLateCycles);
    torch::from_blob(memory, {kElements}, torch::device(torch::kCUDA)).fill_(value);
    return collective_->launch_sum({memory, kElements, Dtype::kFloat32});
  }

  // Reads this memory in the current stream.
  static std::vector<float> read_here(const std::byte* memory) {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    std::vector<float> read(kElements);
    EXPECT_EQ(cudaMemcpyAsync(read.data(), memory, kElements * sizeof(float),
                              cudaMemcpyDeviceToHost, stream.stream()),
              cudaSuccess);
    stream.synchronize();
    return read;
  }

  // Reads in a third stream, which waits for nothing but the sum.
  std::vector<float> read_after(Ticket sum, const std::byte* memory) {
    const c10::cuda::CUDAStreamGuard reading(c10::cuda::getStreamFromPool());
    collective_->wait(sum);
    return read_here(memory);
  }

  static constexpr std::int64_t kElements = 1 << 20;
  static constexpr std::int64_t kLateCycles = 200'000'000;  // about 0.1 s: far beyond a launch
  std::unique_ptr<Collective> collective_;
};

// A sum over one rank changes nothing; what shows is when it may begin. The fill runs late on the
// producing stream. The result is read on a third stream, which only wait() orders after it.
TEST_F(Nccl, SumsAfterWhatTheStreamHolds) {
  const auto memory = collective_->allocate(kElements * sizeof(float));
  for (int i = 1; i <= 5; ++i) {
    const Ticket sum = sum_filled_late(memory.get(), static_cast<float>(i));
    const std::vector<float> read = read_after(sum, memory.get());
    EXPECT_EQ(std::ranges::count(read, static_cast<float>(i)), std::ssize(read)) << "round " << i;
  }
}

TEST_F(Nccl, WaitsAcrossTheWrapOfItsTickets) {
  join({.timeout = std::chrono::seconds(60), .last_ticket = 0xFFFF'FFFEU});
  const auto memory = collective_->allocate(kElements * sizeof(float));
  Ticket last = 0;
  for (int i = 1; i <= 3; ++i) last = sum_filled_late(memory.get(), static_cast<float>(i));
  EXPECT_EQ(last, 1U);
  EXPECT_EQ(read_after(last, memory.get()).back(), 3.0F);
}

TEST_F(Nccl, HoldsTheMemoryOfASumUnderWay) {
  auto memory = collective_->allocate(kElements * sizeof(float));
  const std::weak_ptr<std::byte> seen = memory;
  const Ticket sum = sum_filled_late(memory.get(), 1.0F);
  memory.reset();
  collective_->wait(sum);
  EXPECT_FALSE(seen.expired()) << "the sum is still under way";
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!seen.expired() && Clock::now() < deadline) {
    std::this_thread::yield();
    collective_->progress();
  }
  EXPECT_TRUE(seen.expired());
}

TEST_F(Nccl, WaitsInTheStreamAndNotOnTheHost) {
  const auto memory = collective_->allocate(kElements * sizeof(float));
  const Ticket sum = sum_filled_late(memory.get(), 1.0F);
  const int before = host_waits;
  collective_->wait(sum);
  EXPECT_EQ(host_waits, before);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  EXPECT_EQ(cudaStreamQuery(stream.stream()), cudaErrorNotReady);
  stream.synchronize();
  EXPECT_EQ(read_here(memory.get()).front(), 1.0F);
}

// A kernel that holds the stream for longer than the limit: the peers would wait for this rank.
TEST_F(Nccl, EndsAtTheDeadline) {
  join({.timeout = std::chrono::milliseconds(500)});
  const auto memory = collective_->allocate(64);
  constexpr std::int64_t kLongCycles = 4'000'000'000;  // about 2 s
  at::cuda::sleep(kLongCycles);
  const Ticket sum = collective_->launch_sum({memory.get(), 16, Dtype::kFloat32});
  collective_->wait(sum);
  std::string why;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (why.empty() && Clock::now() < deadline) {
    std::this_thread::yield();
    why = message_of([this] { collective_->progress(); });
  }
  EXPECT_NE(why.find("sum of 64 bytes"), std::string::npos) << why;
  EXPECT_NE(why.find("this rank's GPU has not come to it"), std::string::npos) << why;
  EXPECT_EQ(message_of([this] { collective_->barrier(); }), why);
  EXPECT_EQ(message_of([&] { collective_->wait(sum); }), why);
  EXPECT_EQ(message_of([this] { collective_->allocate(64); }), why);
  EXPECT_NE(collective_->flight_record().find("\"started\""), std::string::npos);
  c10::cuda::getCurrentCUDAStream().synchronize();  // the abort has not left it hanging
}

TEST_F(Nccl, SumsInRegisteredMemory) {
  if (!find_nccl_optional().can_register()) GTEST_SKIP() << "this NCCL registers no memory";
  auto first = collective_->allocate(kElements * sizeof(float));
  const auto second = collective_->allocate(kElements * sizeof(float));
  EXPECT_EQ(read_here(first.get()).front(), 0.0F);
  first.reset();
  const Ticket sum = sum_filled_late(second.get(), 2.0F);
  EXPECT_EQ(read_after(sum, second.get()).back(), 2.0F);
  collective_.reset();  // the memory lives on
  EXPECT_EQ(read_here(second.get()).back(), 2.0F);
}

TEST_F(Nccl, AStepMakesNoHostWait) {
  for (const bool find_unused : {false, true}) {
    torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 64));
    net->to(torch::kCUDA);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    DataParallel parallel(net.ptr(), *collective_, {.find_unused_parameters = find_unused});
    const auto samples = torch::randn({16, 64}, torch::device(torch::kCUDA));
    const auto step = [&] {
      optimizer.zero_grad();
      parallel.forward(net, samples).pow(2).sum().backward();
      parallel.step(optimizer);
    };
    for (int i = 0; i < 3; ++i) step();  // libraries load, buckets are rebuilt
    const int before = host_waits;
    for (int i = 0; i < 5; ++i) step();
    EXPECT_EQ(host_waits, before) << "find_unused_parameters " << find_unused;
    c10::cuda::getCurrentCUDAStream().synchronize();
    EXPECT_EQ(host_waits, before + 1) << "the count counts";
  }
}

// Behind a few steps, in which libraries load and buckets are rebuilt.
int host_waits_of(const std::function<void()>& step) {
  for (int i = 0; i < 3; ++i) step();
  const int before = host_waits;
  for (int i = 0; i < 5; ++i) step();
  return host_waits - before;
}

TEST_F(Nccl, AStepWithClippingOrZeroMakesNoHostWait) {
  torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 64));
  net->to(torch::kCUDA);
  DataParallel parallel(net.ptr(), *collective_);
  Adam adam(net->parameters(), Adam::Options(1e-3));
  ZeroOptimizer<Adam> zero(net->parameters(), *collective_, Adam::Options(1e-3));
  const auto samples = torch::randn({16, 64}, torch::device(torch::kCUDA));
  const auto backward = [&] { parallel.forward(net, samples).pow(2).sum().backward(); };
  EXPECT_EQ(host_waits_of([&] {
              adam.zero_grad();
              backward();
              clip_grad_norm(net->parameters(), 1.0);
              parallel.step(adam);
            }),
            0);
  EXPECT_EQ(host_waits_of([&] {
              zero.zero_grad();
              backward();
              parallel.step(zero);
            }),
            0);
}

// NCCL's own allocator gives 2 MiB or more at a time.
TEST_F(Nccl, FortySumsOfSmallTensorsTakeLittleMemory) {
  constexpr std::size_t kMost = std::size_t{4} << 20;
  const auto free_bytes = [] {
    std::size_t free = 0;
    std::size_t all = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
    return free;
  };
  TensorCollective tensors(*collective_);
  std::vector<at::Tensor> small;
  for (std::int64_t i = 1; i <= 40; ++i)
    small.push_back(torch::ones({10 * i}, torch::device(torch::kCUDA)));
  tensors.all_reduce(small.back());  // the first sum connects
  torch::cuda::synchronize();
  const std::size_t before = free_bytes();
  for (const at::Tensor& tensor : small) tensors.all_reduce(tensor);
  torch::cuda::synchronize();
  EXPECT_GE(free_bytes() + kMost, before);
  EXPECT_EQ(small.front().sum().item<float>(), 10);
}

TEST_F(Nccl, RefusesMemoryThatIsNotItsOwn) {
  const auto foreign = torch::zeros({16}, torch::device(torch::kCUDA));
  EXPECT_THROW(collective_->launch_sum({foreign.data_ptr(), 16, Dtype::kFloat32}), CollectiveError);
  const auto memory = collective_->allocate(64);
  EXPECT_THROW(collective_->launch_sum({memory.get(), 17, Dtype::kFloat32}), CollectiveError);
}

TEST_F(Nccl, GathersHostBytesAndBroadcasts) {
  const std::vector<std::byte> mine(1000, std::byte{7});
  EXPECT_EQ(collective_->all_gather_bytes(mine), std::vector<std::vector<std::byte>>{mine});
  EXPECT_EQ(collective_->all_gather_bytes({}).size(), 1U);
  double metrics[] = {1.5};
  collective_->sum(metrics);
  EXPECT_EQ(metrics[0], 1.5);
  const auto tensor = torch::ones({100}, torch::device(torch::kCUDA));
  collective_->broadcast({tensor.data_ptr(), 100, Dtype::kFloat32}, 0);
  EXPECT_EQ(tensor.sum().item<float>(), 100.0F);
  collective_->barrier();
}

TEST_F(Nccl, TrainsAsWithoutIt) {
  torch::nn::Linear plain(64, 64);
  torch::nn::Linear wrapped(64, 64);
  plain->to(torch::kCUDA);
  wrapped->to(torch::kCUDA);
  {
    const torch::NoGradGuard no_grad;
    wrapped->weight.copy_(plain->weight);
    wrapped->bias.copy_(plain->bias);
  }
  DataParallel parallel(wrapped.ptr(), *collective_);
  for (int i = 0; i < 3; ++i) {
    const auto samples = torch::randn({16, 64}, torch::device(torch::kCUDA));
    plain->zero_grad();
    wrapped->zero_grad();
    plain(samples).pow(2).sum().backward();
    parallel.forward(wrapped, samples).pow(2).sum().backward();
    EXPECT_TRUE(torch::equal(plain->weight.grad(), wrapped->weight.grad()));
  }
}

TEST_F(Nccl, DoesTheOperationsOnTensors) {
  TensorCollective tensors(*collective_);
  const c10::cuda::CUDAStreamGuard aside(c10::cuda::getStreamFromPool());
  const auto turned =
      torch::arange(12, torch::device(torch::kCUDA)).view({3, 4}).to(torch::kFloat).t();
  const auto before = turned.clone();
  for (const auto reduction :
       {Reduction::kSum, Reduction::kAverage, Reduction::kMin, Reduction::kMax}) {
    tensors.all_reduce(turned, reduction);
    EXPECT_TRUE(torch::equal(turned, before));
  }
  EXPECT_TRUE(torch::equal(tensors.all_gather(turned)[0], before));
  EXPECT_TRUE(torch::equal(tensors.reduce_scatter(turned), before));
  tensors.broadcast(turned, 0);
  EXPECT_TRUE(torch::equal(turned, before));
  EXPECT_THROW(tensors.all_reduce(torch::ones(1)), std::invalid_argument) << "it is on the CPU";
  EXPECT_THROW(collective_->send({turned.data_ptr(), 1, Dtype::kUInt8}, 0), CollectiveError);
  const auto group = collective_->split(0, 0);
  EXPECT_EQ(group->world_size(), 1);
  group->barrier();
  EXPECT_EQ(collective_->split(-1, 0), nullptr);
}

// The library that is loaded is the one that we compile with, and has what that release has.
TEST(NcclWithoutGpu, FindsTheFunctionsOfItsRelease) {
  const NcclOptional found = find_nccl_optional();
  EXPECT_EQ(found.can_register(), NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0));
  EXPECT_EQ(found.revoke != nullptr, NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7));
}

// For machines without a GPU: asking for one is an error, not a crash.
TEST(NcclWithoutGpu, IsRefusedInOneLine) {
  if (why_no_gpu().empty()) GTEST_SKIP() << "this machine has a GPU";
  PipeExchange exchange(1);
  const auto joined = join_nccl({.timeout = std::chrono::seconds(1)}, exchange);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().message(), why_no_gpu());
  EXPECT_EQ(joined.error().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
