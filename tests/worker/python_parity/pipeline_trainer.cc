// Trains a small net in a pipeline, as pipeline_trainer.py does with PyTorch's pipelining. Prints a
// line `mode hashes` for each mode. The hashes are of losses, of the first gradients, and of the
// weights at the end. ddprun starts it, with modes as arguments: gpipe-4 has 4 micro-batches. With
// "-data" behind it, pairs of stages are trained by DataParallel.
#include <ddprun/optimizers.h>
#include <ddprun/pipeline.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kFeatures = 24, kClasses = 7, kRows = 24;
constexpr int kLayers = 4, kSteps = 5;

// The stage's share of the layers. The last one has a head, too.
struct StageImpl : torch::nn::Module {
  explicit StageImpl(const Collective& ranks) {
    const int each = kLayers / ranks.world_size(), first = ranks.rank() * each;
    for (int i = first; i < first + each; ++i) {
      torch::manual_seed(10 + i);
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(kFeatures, kFeatures)));
    }
    if (first + each < kLayers) return;
    torch::manual_seed(2);
    head = register_module("head", torch::nn::Linear(kFeatures, kClasses));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = x + torch::tanh(layer(x));
    return head ? head(x) : x;
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Stage);

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(scores, targets);
}

PipelineOptions options_of(const std::string& mode) {
  const auto dash = mode.find('-');
  return {.micro_batches = std::stoi(mode.substr(dash + 1)),
          .schedule = mode.starts_with("gpipe") ? PipelineSchedule::kGPipe
                                                : PipelineSchedule::kOneForwardOneBackward};
}

// Hashes of all ranks, in rank order.
std::string joined(Collective& ranks, const Hash& mine) {
  const auto value = static_cast<std::int64_t>(mine.value() >> 1);
  Hash all;
  for (const at::Tensor& each : TensorCollective(ranks).all_gather(torch::tensor({value})))
    all.add(each);
  return fmt::format("{:016x}", all.value());
}

std::string end_of(const std::string& mode, Collective& ranks) {
  const int copies = mode.ends_with("-data") ? 2 : 1;
  const Mesh mesh(ranks, {{"data", copies}, {"pipeline", ranks.world_size() / copies}});
  Collective& stages = mesh.along("pipeline");
  const Stage stage(stages);
  std::optional<DataParallel> parallel;
  if (copies > 1) parallel.emplace(stage.ptr(), mesh.along("data"));
  Pipeline pipeline(parallel ? pipeline_stage(stage, *parallel) : pipeline_stage(stage), stages,
                    loss_of, options_of(mode));
  SGD optimizer(stage->parameters(), SGD::Options(0.3).momentum(0.9));
  Hash losses, gradients, weights;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(1000 + 10 * step + mesh.along("data").rank());
    const auto inputs = torch::randn({kRows, kFeatures});
    const auto targets = torch::randint(kClasses, {kRows}, torch::kLong);
    const auto loss = pipeline.forward_backward(inputs, targets);
    if (loss.defined()) losses.add(loss);
    if (step == 0)
      for (const auto& parameter : stage->parameters()) gradients.add(parameter.grad());
    parallel ? parallel->step(optimizer) : optimizer.step();
  }
  for (const auto& parameter : stage->parameters()) weights.add(parameter);
  return fmt::format("{}:{}:{}", joined(ranks, losses), joined(ranks, gradients),
                     joined(ranks, weights));
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) { ddprun::worker::print_ends(argc, argv, ddprun::worker::end_of); }
