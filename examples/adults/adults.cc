// adults: a table with numbers, categories and missing values (UCI's Adult: does a person earn more
// than 50,000 a year?). Scale and categories are learnt from the training table alone. Each
// category becomes a small vector that is trained with the rest.
//
//   examples/data/fetch adults /tmp/adults
//   ddprun --standalone --nproc-per-node=2 build/bin/adults --data /tmp/adults
//
// examples/pytorch/adults.py ends with the same bits.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <filesystem>
#include <optional>

#include "examples/adults/adult_table.h"
#include "examples/common/classifier.h"
#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::AdultTable;

struct Options {
  std::filesystem::path data;
  int epochs = 3, batch_size = 64;
  double lr = 0.05;
};

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(std::int64_t numbers, const std::vector<std::int64_t>& categories) {
    constexpr std::int64_t kVector = 8, kHidden = 64;
    for (const std::int64_t codes : categories)
      vectors_->push_back(torch::nn::Embedding(codes, kVector));
    const auto width = numbers + kVector * static_cast<std::int64_t>(categories.size());
    register_module("vectors", vectors_);
    hidden_ = register_module("hidden", torch::nn::Linear(width, kHidden));
    output_ = register_module("output", torch::nn::Linear(kHidden, 2));
  }

  // numbers: [batch, number columns] float; codes: [batch, category columns] int64.
  torch::Tensor forward(const torch::Tensor& numbers, const torch::Tensor& codes) {
    std::vector<torch::Tensor> parts{numbers};
    for (std::size_t i = 0; i < vectors_->size(); ++i)
      parts.push_back(vectors_[i]->as<torch::nn::Embedding>()->forward(
          codes.select(1, static_cast<std::int64_t>(i))));
    return output_(torch::relu(hidden_(torch::cat(parts, 1))));
  }

 private:
  torch::nn::ModuleList vectors_;
  torch::nn::Linear hidden_{nullptr}, output_{nullptr};
};
TORCH_MODULE(Net);

void train(Process& process, const Options& options, const examples::Adults& adults) {
  Collective& ranks = *process.collective;
  torch::manual_seed(1);
  Net net(adults.train.number_columns(), adults.code_counts);
  examples::place(process, *net);
  DataParallel parallel(net.ptr(), ranks);
  SGD optimizer(net->parameters(), SGD::Options(options.lr).momentum(0.9));
  DistributedSampler sampler(adults.train.size(), ranks.world_size(), ranks.rank());
  BatchLoader loader(adults.train, sampler, static_cast<std::size_t>(options.batch_size));
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    const auto loss = examples::train_epoch(loader, parallel, optimizer, [&](const auto& batch) {
      return parallel.forward(net, batch.numbers, batch.codes);
    });
    examples::say_epoch(process, epoch, options.epochs, loss);
  }
  const double accuracy = examples::accuracy_over(
      ranks, *net, adults.held_out, 1024,
      [&](const auto& batch) { return net->forward(batch.numbers, batch.codes); });
  examples::say_result(process, *net, accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "Trains on a table of adults, data-parallel: do they earn more than 50,000?");
  flags.path("--data", options.data, "folder", "folder with adult.data and adult.test (needed)");
  flags.count("--epochs", options.epochs, "passes over the table (3)");
  flags.count("--batch-size", options.batch_size, "rows a worker and step (64)");
  flags.rate("--lr", options.lr, "learning rate (0.05)");
  std::optional<examples::Adults> adults;
  const auto load = [&] {
    adults = examples::value_of("--data", [&] { return examples::read_adults(options.data); });
  };
  return examples::run_training("adults", flags, argc, argv, load,
                                [&](Process& process) { train(process, options, *adults); });
}
