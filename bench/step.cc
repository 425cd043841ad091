// Our side of bench/step: one rank. It takes orders `MODEL VARIANT WARM_UPS STEPS` from a named
// pipe. It answers each with a line of JSON in another one. The line has the time of each step, and
// the usage of the measured steps together. It ends when nobody has the other end of the orders
// open any more. Started by ddprun:
//   bench-step FOLDER [--device=cpu|cuda]      with FOLDER/orders.RANK and FOLDER/answers.RANK
// bench/step_torch.py does the same with PyTorch.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <ddprun/amp.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/cuda.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/program.h"
#include "bench/step_models.h"

namespace ddprun::bench {
namespace {

// The limit of one wait for the other ranks. They get the same order at the same time.
constexpr std::chrono::seconds kTimeout{120};
// The step whose loss is told. Every trainer comes to it, and it has seen the sums of two steps.
constexpr int kStepOfLoss = 3;

enum class Variant {
  kFree,     // the ranks know nothing of each other
  kBarrier,  // they meet where DataParallel has its sums complete, and send nothing
  kDdp,      // DataParallel
  kViews,    // … whose gradients lie in the buckets
  kBf16,     // kViews, with the forward pass in bfloat16
};

struct Order {
  std::string model;
  std::string name;  // of the variant
  Variant variant = Variant::kFree;
  std::size_t cap_mib = 0;  // of a bucket: of `capN`, which is kViews with it; 0: the default
  int warm_ups = 0;
  int steps = 0;
};

// Reads N of `capN`; 0 if it is none.
std::size_t cap_of(const std::string& name) {
  std::size_t cap = 0;
  if (!name.starts_with("cap")) return 0;
  std::from_chars(name.data() + 3, name.data() + name.size(), cap);
  return cap;
}

std::optional<Order> parse_order(const std::string& line) {
  constexpr std::array kNames{"free", "barrier", "ddp", "views", "bf16"};
  Order order;
  std::istringstream words(line);
  words >> order.model >> order.name >> order.warm_ups >> order.steps;
  if (!words || order.warm_ups < 0 || order.steps < 1) return std::nullopt;
  order.cap_mib = cap_of(order.name);
  const std::string name = order.cap_mib > 0 ? "views" : order.name;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    order.variant = static_cast<Variant>(i);
    if (name == kNames[i]) return order;
  }
  return std::nullopt;
}

// The expenses of this process since its start.
struct Usage {
  double wall_s = 0;
  double cpu_s = 0;           // of all threads
  double training_cpu_s = 0;  // of this thread
  long page_faults = 0;       // minor ones: the kernel gave a page and read no disk
};

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

Usage usage_now() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return {seconds_of(CLOCK_MONOTONIC), seconds_of(CLOCK_PROCESS_CPUTIME_ID),
          seconds_of(CLOCK_THREAD_CPUTIME_ID), used.ru_minflt};
}

// bootstrap() has made the rank's GPU the current one.
at::Device device_of(const Collective& collective) {
  return collective.device() == Device::kCuda ? at::kCUDA : at::kCPU;
}

// The batch where the model is.
Batch placed_batch(const std::string& model, const Collective& collective) {
  const at::Device device = device_of(collective);
  Batch batch = make_batch(model, collective.rank(), device.is_cuda());
  return {batch.inputs.to(device), batch.labels.to(device)};
}

// A model that is trained on one batch again and again.
class Trainer {
 public:
  Trainer(const Order& order, Collective& collective)
      : collective_(collective),
        with_barrier_(order.variant == Variant::kBarrier),
        in_bf16_(order.variant == Variant::kBf16),
        model_(make_model(order.model, device_of(collective))),
        batch_(placed_batch(order.model, collective)) {
    if (!model_) throw std::invalid_argument(fmt::format("no model '{}' here", order.model));
    if (order.variant >= Variant::kDdp) {
      DataParallelOptions options;
      options.gradient_as_bucket_view = order.variant != Variant::kDdp;
      if (order.cap_mib > 0) options.bucket_cap_bytes = order.cap_mib << 20;
      parallel_.emplace(model_, collective_, options);
    }
    optimizer_.emplace(model_->parameters(), SGD::Options(0.01));
  }

  void step() {
    optimizer_->zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(scores(), batch_.labels);
    loss.backward();
    if (with_barrier_) collective_.barrier();
    if (parallel_) {
      parallel_->step(*optimizer_);
    } else {
      optimizer_->step();
    }
    if (++steps_ == kStepOfLoss) loss_ = loss.item<double>();
  }

  double loss() const { return loss_; }

 private:
  at::Tensor scores() {
    const Autocast autocast(batch_.inputs.device().type(), at::kBFloat16, in_bf16_);
    return (parallel_ ? parallel_->forward(model_, batch_.inputs) : model_->forward(batch_.inputs))
        .to(at::kFloat);
  }

  Collective& collective_;
  bool with_barrier_;
  bool in_bf16_;
  int steps_ = 0;
  double loss_ = 0;
  std::shared_ptr<Model> model_;
  Batch batch_;
  std::optional<DataParallel> parallel_;
  std::optional<SGD> optimizer_;
};

// The trainers of one model: a variant goes on at the point at which its last order ended. An order
// for another model ends them all.
class Trainers {
 public:
  explicit Trainers(Collective& collective) : collective_(collective) {}

  Trainer& of(const Order& order) {
    if (order.model != model_) trainers_.clear();
    model_ = order.model;
    return trainers_.try_emplace(order.name, order, collective_).first->second;
  }

 private:
  Collective& collective_;
  std::string model_;
  std::map<std::string, Trainer> trainers_;
};

// The time of each step. A wait for the GPU in each one would change what is measured. So there it
// is the mean of all, once.
std::vector<double> timed_steps(const Order& order, Trainer& trainer, bool on_gpu) {
  std::vector<double> times_ms;
  const auto all_start = Clock::now();
  for (int i = 0; i < order.steps; ++i) {
    const auto start = Clock::now();
    trainer.step();
    times_ms.push_back(milliseconds_since(start));
  }
  if (!on_gpu) return times_ms;
  torch::cuda::synchronize();
  return {milliseconds_since(all_start) / order.steps};
}

std::string measure(const Order& order, Trainer& trainer, Collective& collective) {
  const bool on_gpu = collective.device() == Device::kCuda;
  for (int i = 0; i < order.warm_ups; ++i) trainer.step();
  if (on_gpu) torch::cuda::synchronize();
  collective.barrier();
  const Usage before = usage_now();
  const std::vector<double> times_ms = timed_steps(order, trainer, on_gpu);
  const Usage after = usage_now();
  return fmt::format(
      "{{\"times_ms\": [{:.4f}], \"loss\": {}, \"wall_s\": {}, \"cpu_s\": {}, \"training_cpu_s\": "
      "{}, \"page_faults\": {}, \"pid\": {}}}",
      fmt::join(times_ms, ", "), trainer.loss(), after.wall_s - before.wall_s,
      after.cpu_s - before.cpu_s, after.training_cpu_s - before.training_cpu_s,
      after.page_faults - before.page_faults, ::getpid());
}

// The first DataParallel of a process sets up malloc, for good. It is made before the first order.
// Else orders without DataParallel would find one malloc in the first round and another one later.
void set_up_malloc(Collective& collective) {
  torch::nn::Linear module(1, 1);
  module->to(device_of(collective));
  const DataParallel parallel(module.ptr(), collective);
}

int serve(const std::string& folder, const Process& process) {
  set_up_malloc(*process.collective);
  std::ifstream orders(fmt::format("{}/orders.{}", folder, process.world.rank));
  std::ofstream answers(fmt::format("{}/answers.{}", folder, process.world.rank));
  Trainers trainers(*process.collective);
  std::string line;
  while (std::getline(orders, line)) {
    const auto order = parse_order(line);
    if (!order) {
      fmt::print(stderr, "bench-step: this is no order: {}\n", line);
      return 1;
    }
    answers << measure(*order, trainers.of(*order), *process.collective) << std::endl;
  }
  return 0;
}

int run(const std::string& folder, Device device) {
  at::set_num_threads(1);
  try {
    Process process = bootstrap({.device = device, .timeout = kTimeout});
    return serve(folder, process);
  } catch (const StartError& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  const std::string device = argc == 3 ? argv[2] : "--device=cpu";
  const bool on_gpu = device == "--device=cuda";
  if (argc < 2 || argc > 3 || (!on_gpu && device != "--device=cpu")) {
    fmt::print(stderr, "usage: bench-step FOLDER [--device=cpu|cuda]\n");
    return 2;
  }
  try {
    return ddprun::bench::run(argv[1], on_gpu ? ddprun::Device::kCuda : ddprun::Device::kCpu);
  } catch (const ddprun::LoggedError&) {
    return 1;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what());
  }
  return 1;
}
