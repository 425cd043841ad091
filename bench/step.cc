// Our side of bench/step: one rank. It takes orders `MODEL VARIANT WARM_UPS STEPS` from a named
// pipe. It answers each with a line of JSON in another one. The line has the time of each step, and
// the usage of the measured steps together. It ends when nobody has the other end of the orders
// open any more. Started by ddprun:
//   bench-step FOLDER      with FOLDER/orders.RANK and FOLDER/answers.RANK
// bench/step_torch.py does the same with PyTorch.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <ddprun/data_parallel.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
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
};

struct Order {
  std::string model;
  Variant variant = Variant::kFree;
  int warm_ups = 0;
  int steps = 0;
};

std::optional<Order> parse_order(const std::string& line) {
  constexpr std::array kNames{"free", "barrier", "ddp", "views"};
  Order order;
  std::string variant;
  std::istringstream words(line);
  words >> order.model >> variant >> order.warm_ups >> order.steps;
  if (!words || order.warm_ups < 0 || order.steps < 1) return std::nullopt;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    order.variant = static_cast<Variant>(i);
    if (variant == kNames[i]) return order;
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

// A model that is trained on one batch again and again.
class Trainer {
 public:
  Trainer(const Order& order, Collective& collective)
      : collective_(collective),
        with_barrier_(order.variant == Variant::kBarrier),
        model_(make_model(order.model)),
        batch_(make_batch(order.model, collective.rank())) {
    if (!model_) throw std::invalid_argument(fmt::format("no model '{}' here", order.model));
    if (order.variant == Variant::kDdp || order.variant == Variant::kViews) {
      DataParallelOptions options;
      options.gradient_as_bucket_view = order.variant == Variant::kViews;
      parallel_.emplace(model_, collective_, options);
    }
    optimizer_.emplace(model_->parameters(), torch::optim::SGDOptions(0.01));
  }

  void step() {
    optimizer_->zero_grad();
    const auto scores =
        parallel_ ? parallel_->forward(model_, batch_.inputs) : model_->forward(batch_.inputs);
    const auto loss = torch::nn::functional::cross_entropy(scores, batch_.labels);
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
  Collective& collective_;
  bool with_barrier_;
  int steps_ = 0;
  double loss_ = 0;
  std::shared_ptr<Model> model_;
  Batch batch_;
  std::optional<DataParallel> parallel_;
  std::optional<torch::optim::SGD> optimizer_;
};

// The trainers of one model: a variant goes on at the point at which its last order ended. An order
// for another model ends them all.
class Trainers {
 public:
  explicit Trainers(Collective& collective) : collective_(collective) {}

  Trainer& of(const Order& order) {
    if (order.model != model_) trainers_.clear();
    model_ = order.model;
    return trainers_.try_emplace(order.variant, order, collective_).first->second;
  }

 private:
  Collective& collective_;
  std::string model_;
  std::map<Variant, Trainer> trainers_;
};

std::string measure(const Order& order, Trainer& trainer, Collective& collective) {
  for (int i = 0; i < order.warm_ups; ++i) trainer.step();
  collective.barrier();
  std::vector<double> times_ms;
  const Usage before = usage_now();
  for (int i = 0; i < order.steps; ++i) {
    const auto start = Clock::now();
    trainer.step();
    times_ms.push_back(milliseconds_since(start));
  }
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
  const torch::nn::Linear module(1, 1);
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

int run(const std::string& folder) {
  at::set_num_threads(1);
  try {
    Process process = bootstrap({.timeout = kTimeout});
    return serve(folder, process);
  } catch (const StartError& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: bench-step FOLDER\n");
    return 2;
  }
  try {
    return ddprun::bench::run(argv[1]);
  } catch (const ddprun::LoggedError&) {
    return 1;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-step: {}\n", error.what());
  }
  return 1;
}
