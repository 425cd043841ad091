// Does each operation with tensors of each type, as collectives_program.py does with
// torch.distributed. Prints a line `rank.name numbers` for each. Started by ddprun, perhaps with
// --device=cuda.
#include <ddprun/metrics.h>
#include <ddprun/process.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"

namespace ddprun::worker {
namespace {

const std::vector<std::pair<std::string, at::ScalarType>> kTypes{
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"int64", at::kLong},
    {"int32", at::kInt},
    {"int8", at::kChar},
    {"uint8", at::kByte},
    {"complex64", at::kComplexFloat},
    {"complex128", at::kComplexDouble}};

// 120 numbers, others on each rank. Those of 16 bits are no whole ones: sums round at each
// addition, as Gloo's.
at::Tensor input(at::ScalarType type, int rank) {
  torch::manual_seed(100 + rank);
  const at::Tensor floats = torch::randn(120, torch::kDouble);
  const at::Tensor integers = torch::randint(31, {120});
  if (c10::isComplexType(type)) return torch::complex(floats, floats.flip(0)).to(type);
  return (c10::isFloatingType(type) ? floats : integers).to(type);
}

class Program {
 public:
  explicit Program(Collective& ranks) : ranks_(ranks), tensors_(ranks) {}

  void run();
  void print();

 private:
  void say(const std::string& name, const at::Tensor& tensor);
  void reduce(const std::string& name, const at::Tensor& mine);
  void move(const std::string& name, const at::Tensor& mine);
  void exchange(const std::string& name, const at::Tensor& mine);
  void as_in_readme(const std::string& name, const at::Tensor& mine);

  Collective& ranks_;
  TensorCollective tensors_;
  std::string lines_;
};

void Program::say(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.contiguous()) : tensor;
  const at::Tensor numbers = real.cpu().to(at::kDouble).flatten().contiguous();
  const auto* data = numbers.data_ptr<double>();
  lines_ +=
      fmt::format("{}.{} {}\n", ranks_.rank(), name, fmt::join(data, data + numbers.numel(), ","));
}

void Program::reduce(const std::string& name, const at::Tensor& mine) {
  for (const auto& [operation, reduction] :
       {std::pair("sum", Reduction::kSum), std::pair("average", Reduction::kAverage),
        std::pair("min", Reduction::kMin), std::pair("max", Reduction::kMax)}) {
    const bool divides = mine.is_floating_point() || mine.is_complex();
    if (reduction == Reduction::kAverage ? !divides
                                         : mine.is_complex() && reduction != Reduction::kSum)
      continue;
    const at::Tensor all = mine.clone();
    tensors_.all_reduce(all, reduction);
    say(name + "." + operation, all);
  }
  const auto half = ranks_.split(ranks_.rank() % 2, 0);
  const at::Tensor group = mine.clone();
  TensorCollective(*half).all_reduce(group);
  say(name + ".group", group);
  // Whole numbers: Gloo's order of additions is another one here.
  const at::Tensor whole =
      mine.is_complex() ? mine : torch::round(mine.to(at::kDouble)).to(mine.scalar_type());
  if (!mine.is_complex())
    say(name + ".scatter", tensors_.reduce_scatter(whole.narrow(0, 0, ranks_.world_size() * 10)));
}

void Program::move(const std::string& name, const at::Tensor& mine) {
  say(name + ".gather", torch::stack(tensors_.all_gather(mine)));
  const at::Tensor root = mine.clone();
  tensors_.broadcast(root, ranks_.world_size() - 1);
  say(name + ".broadcast", root);
  const int next = (ranks_.rank() + 1) % ranks_.world_size();
  const int last = (ranks_.rank() + ranks_.world_size() - 1) % ranks_.world_size();
  const at::Tensor got = torch::empty_like(mine);
  if (ranks_.rank() != 0) tensors_.receive(got, last);
  tensors_.send(mine, next);
  if (ranks_.rank() == 0) tensors_.receive(got, last);
  say(name + ".receive", got);
  exchange(name, mine);
}

// Rank r gives r + i rows of 3 to rank i, so that some get none. Then it gives as many to all.
void Program::exchange(const std::string& name, const at::Tensor& mine) {
  std::vector<std::int64_t> rows;
  std::int64_t all = 0;
  for (int to = 0; to < ranks_.world_size(); ++to) {
    rows.push_back(ranks_.rank() + to);
    all += rows.back();
  }
  say(name + ".uneven", tensors_.all_to_all(mine.narrow(0, 0, 3 * all).view({all, 3}), rows));
  say(name + ".even", tensors_.all_to_all(mine));
  const at::Tensor into = torch::empty({120 * ranks_.world_size()}, mine.options());
  auto launched = tensors_.launch_all_gather(into, mine);
  tensors_.wait(launched);
  say(name + ".into", into);
}

// The lines of README.md, with tensors of this type.
void Program::as_in_readme(const std::string& name, const at::Tensor& mine) {
  Collective& ranks = ranks_;
  TensorCollective& tensors = tensors_;
  Mean mean_loss;
  mean_loss.add(torch::real(mine).to(at::kDouble).sum().item<double>(), 1.0 + ranks.rank());
  say(name + ".loss", torch::tensor(mean_loss.over(ranks), at::kDouble));
  const auto largest = mine.abs().max();
  tensors.all_reduce(largest, Reduction::kMax);
  say(name + ".largest", largest);
  const auto all = tensors.all_gather(mine.narrow(0, 0, 6).view({2, 3}));
  say(name + ".all", torch::stack(all));
  const auto half = ranks.split(ranks.rank() % 2, 0);
  const auto sum = mine.clone();
  TensorCollective(*half).all_reduce(sum);
  say(name + ".half", sum);
  ranks.monitored_barrier(std::chrono::seconds(60));
}

void Program::run() {
  for (const auto& [name, type] : kTypes) {
    const at::Tensor mine = input(type, ranks_.rank()).to(device_of(ranks_));
    reduce(name, mine);
    move(name, mine);
    as_in_readme(name, mine);
  }
  move("bool", input(at::kLong, ranks_.rank()).to(device_of(ranks_)) > 15);
  Mean loss;
  loss.add(1.25 * ranks_.rank(), ranks_.rank() + 1);
  say("mean", torch::tensor(loss.over(ranks_), torch::kDouble));
  ranks_.monitored_barrier(std::chrono::seconds(20));
}

// One rank after the other: their lines must not mix.
void Program::print() {
  for (int rank = 0; rank < ranks_.world_size(); ++rank) {
    if (rank == ranks_.rank()) std::fputs(lines_.c_str(), stdout);
    std::fflush(stdout);
    ranks_.barrier();
  }
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  const ddprun::Device device = ddprun::worker::words_of(argc, argv).device;
  const ddprun::Process process = ddprun::bootstrap({.device = device});
  ddprun::worker::Program program(*process.collective);
  program.run();
  program.print();
  return 0;
}
