#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <ddprun/captured_step.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/gpu/faults/fault.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kElements = 1 << 20;
constexpr std::int64_t kCyclesASecond = 1'800'000'000;  // about; cards differ by a tenth
constexpr std::chrono::seconds kUsualTimeout{60};
constexpr std::chrono::seconds kDeadline{3};
constexpr std::int64_t kEndless = 15 * kCyclesASecond;  // beyond each limit here

void check(cudaError_t status, const char* doing) {
  require(status == cudaSuccess, fmt::format("{}: {}", doing, cudaGetErrorString(status)));
}

at::Tensor tensor_of(const std::shared_ptr<std::byte>& memory) {
  return torch::from_blob(memory.get(), {kElements}, torch::device(torch::kCUDA));
}

Ticket launch(Collective& ranks, const std::shared_ptr<std::byte>& memory) {
  return ranks.launch_sum({memory.get(), kElements, Dtype::kFloat32});
}

// The message with which the collective has ended; empty if it goes on.
std::string end_of(Collective& ranks) {
  try {
    ranks.barrier();
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return {};
}

void capture_for(std::chrono::milliseconds duration) {
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto numbers = torch::zeros({1024}, torch::device(torch::kCUDA));
  stream.synchronize();
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeGlobal), "begin a capture");
  const auto end = FaultClock::now() + duration;
  while (FaultClock::now() < end) {
    check(cudaMemsetAsync(numbers.data_ptr(), 0, 4096, stream.stream()), "capture a memset");
    std::this_thread::yield();
  }
  check(cudaStreamEndCapture(stream.stream(), &graph), "end a capture");
  cudaGraphDestroy(graph);
}

// A net whose step sums by NCCL in a world of one, too.
struct Trained {
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<Adam> optimizer;
  at::Tensor samples;

  explicit Trained(Collective& ranks) {
    torch::manual_seed(3);
    net = torch::nn::Sequential(torch::nn::Linear(784, 512), torch::nn::ReLU(),
                                torch::nn::Linear(512, 512), torch::nn::ReLU(),
                                torch::nn::Linear(512, 10));
    net->to(at::kCUDA);
    samples = torch::randn({64, 784}).to(at::kCUDA);
    parallel = std::make_unique<DataParallel>(net.ptr(), ranks);
    parallel->comm_hook(all_reduce_hook());
    optimizer = std::make_unique<Adam>(net->parameters(), Adam::Options(1e-3));
  }

  void step() {
    optimizer->zero_grad(false);
    parallel->forward(net, samples).pow(2).mean().backward();
    parallel->step(*optimizer);
  }
};

template <typename Step>
double seconds_of(int count, const Step& step) {
  torch::cuda::synchronize();
  const auto start = FaultClock::now();
  for (int i = 0; i < count; ++i) step();
  torch::cuda::synchronize();
  return seconds_since(start) / count;
}

// A whole step is captured, and replayed 100 times. It ends with the bits of eager steps.
void expect_bits_of_eager_steps(Collective& ranks) {
  constexpr int kReplays = 100;
  const auto other = ranks.split(0, ranks.rank());  // the sums of another job go on meanwhile
  const auto aside = other->allocate(kElements * sizeof(float));
  Trained eager(ranks);
  Trained replayed(ranks);
  CapturedStep step = ddprun::captured_step(
      [&] {
        replayed.step();
        return at::Tensor();
      },
      ranks);
  for (int i = 0; i < CapturedStepOptions{}.warm_ups; ++i) {
    eager.step();
    step();
  }
  torch::cuda::synchronize();
  const Ticket under_way = launch(*other, aside);
  step();
  eager.step();
  other->wait(under_way);
  require(step.is_captured(), "the step is not captured");
  const double eager_s = seconds_of(kReplays, [&] { eager.step(); });
  const double replay_s = seconds_of(kReplays, [&] { step(); });
  if (ranks.rank() == 0)
    fmt::print("eager_ms {:.4f}\nreplay_ms {:.4f}\n", 1e3 * eager_s, 1e3 * replay_s);
  require(end_of(ranks).empty(), "the collective ended: " + end_of(ranks));
  for (std::size_t i = 0; i < eager.net->parameters().size(); ++i)
    require(torch::equal(eager.net->parameters()[i], replayed.net->parameters()[i]),
            fmt::format("parameter {} has other bits than after eager steps", i));
}

}  // namespace

// Row 1: another thread captures in global mode while the watcher asks for a sum.
void capture_elsewhere(Device device) {
  const auto ranks = joined_alone(device, kUsualTimeout);
  const auto memory = ranks->allocate(kElements * sizeof(float));
  at::cuda::sleep(kCyclesASecond);
  const Ticket sum = launch(*ranks, memory);
  auto captured = std::async(std::launch::async, capture_for, std::chrono::milliseconds(500));
  captured.get();
  ranks->wait(sum);
  require(end_of(*ranks).empty(), "the collective ended: " + end_of(*ranks));
}

// Row 2: a sum is captured, and the graph is replayed.
void sum_in_a_capture(Device device) {
  const auto ranks = joined_alone(device, kUsualTimeout);
  const auto memory = ranks->allocate(kElements * sizeof(float));
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  ranks->wait(launch(*ranks, memory));
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  tensor_of(memory).add_(1);
  ranks->wait(launch(*ranks, memory));
  graph.capture_end();
  for (int i = 0; i < 3; ++i) graph.replay();
  torch::cuda::synchronize();
  require(end_of(*ranks).empty(), "the collective ended: " + end_of(*ranks));
  const auto mean = tensor_of(memory).mean().item<float>();
  require(mean == 3, fmt::format("the numbers are {} and not 3", mean));
}

void captured_step(Device device) {
  expect_bits_of_eager_steps(*joined_alone(device, kUsualTimeout));
}

// NCCL launches what two ranks capture from a thread of its own.
void captured_step_of_two(Device device) {
  const auto statuses = run_two({device, kUsualTimeout}, expect_bits_of_eager_steps);
  require(statuses == std::vector<int>{0, 0}, "a rank did not end well");
}

// Rows 3 and 5: a kernel of the program does not end. The host is told, and may go.
void waiter_behind_an_endless_kernel(Device device) {
  const auto ranks = joined_alone(device, kDeadline);
  const auto memory = ranks->allocate(kElements * sizeof(float));
  ranks->wait(launch(*ranks, memory));
  torch::cuda::synchronize();
  at::cuda::sleep(kEndless);
  const auto start = FaultClock::now();
  ranks->wait(launch(*ranks, memory));
  const std::string why = end_of(*ranks);
  const double seconds = seconds_since(start);
  fmt::print("told after {:.2f} s: {}\n", seconds, why);
  require(why.find("this rank's GPU has not come to it") != std::string::npos,
          "the reason: " + why);
  require(seconds <= 3.1, fmt::format("told after {:.2f} s", seconds));
}

// Row 4: nobody asks the collective. The process ends all the same, so that the agent can start it
// anew.
void process_behind_an_endless_kernel(Device device) {
  const double life = life_of_child(std::chrono::seconds(20), [device](const auto& begun) {
    const auto ranks = joined_alone(device, kDeadline);
    const auto memory = ranks->allocate(kElements * sizeof(float));
    begun();
    at::cuda::sleep(kEndless);
    ranks->wait(launch(*ranks, memory));
    c10::cuda::getCurrentCUDAStream().synchronize();
  });
  fmt::print("gone after {:.2f} s\n", life);
  require(life <= 8, fmt::format("gone after {:.2f} s", life));
}

// Row 5: the collective is destroyed behind such a kernel.
void destroyed_behind_an_endless_kernel(Device device) {
  auto ranks = joined_alone(device, kDeadline);
  const auto memory = ranks->allocate(kElements * sizeof(float));
  at::cuda::sleep(kEndless);
  ranks->wait(launch(*ranks, memory));
  end_of(*ranks);
  const auto start = FaultClock::now();
  ranks.reset();
  fmt::print("destroyed in {:.2f} s\n", seconds_since(start));
  require(seconds_since(start) <= 12, "it took more than 12 s");
}

// Row 6: the collective goes before a graph that holds one of its sums.
void destroyed_before_its_graph(Device device) {
  auto ranks = joined_alone(device, kUsualTimeout);
  auto memory = ranks->allocate(kElements * sizeof(float));
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  ranks->wait(launch(*ranks, memory));
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  ranks->wait(launch(*ranks, memory));
  graph.capture_end();
  graph.replay();
  torch::cuda::synchronize();
  const auto start = FaultClock::now();
  ranks.reset();
  fmt::print("destroyed in {:.2f} s\n", seconds_since(start));
  require(seconds_since(start) <= 12, "it took more than 12 s");
}

// Row 10: memory is dropped while a kernel of the program still reads it.
void memory_dropped_under_a_kernel(Device device) {
  const auto ranks = joined_alone(device, kUsualTimeout);
  for (int round = 1; round <= 20; ++round) {
    auto memory = ranks->allocate(kElements * sizeof(float));
    tensor_of(memory).fill_(static_cast<float>(round));
    at::cuda::sleep(kCyclesASecond / 20);
    const auto read = tensor_of(memory).clone();
    memory.reset();
    const auto next = ranks->allocate(kElements * sizeof(float));
    tensor_of(next).fill_(-1);
    const auto mean = read.mean().item<float>();
    require(mean == static_cast<float>(round), fmt::format("round {}: read {}", round, mean));
  }
  check(cudaDeviceSynchronize(), "wait for the GPU");
}

}  // namespace ddprun::worker
