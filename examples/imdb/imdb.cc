// imdb: are film reviews friendly? Words become vectors, a text is the mean of its words. Batches
// of long texts go through another layer than batches of short ones. So each pass leaves a layer
// unused, and not the same one on all ranks. That needs find_unused_parameters.
//
//   examples/data/fetch imdb /tmp/imdb
//   ddprun --standalone --nproc-per-node=2 build/bin/imdb --data /tmp/imdb
//
// examples/pytorch/imdb.py ends with the same bits.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "examples/common/classifier.h"
#include "examples/common/program.h"
#include "examples/imdb/review_set.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)

struct Options {
  std::filesystem::path data;
  int epochs = 3, batch_size = 32, words = 20000, length = 256, long_text = 200;
  double lr = 1;
};

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(std::int64_t words, std::int64_t long_text)
      : long_text_(long_text),
        vectors_(register_module(
            "vectors", torch::nn::EmbeddingBag(
                           torch::nn::EmbeddingBagOptions(words, kWidth).mode(torch::kMean)))),
        short_(register_module("short", torch::nn::Linear(kWidth, kWidth))),
        long_(register_module("long", torch::nn::Linear(kWidth, kWidth))),
        output_(register_module("output", torch::nn::Linear(kWidth, 2))) {}

  torch::Tensor forward(const examples::ReviewBatch& batch) {
    const auto texts = vectors_(batch.words, batch.starts);
    auto& layer = batch.words.size(0) > long_text_ * batch.starts.size(0) ? long_ : short_;
    return output_(torch::relu(layer(texts)));
  }

 private:
  static constexpr std::int64_t kWidth = 32;
  std::int64_t long_text_;  // words: a batch whose texts have more in the mean is a long one
  torch::nn::EmbeddingBag vectors_;
  torch::nn::Linear short_, long_, output_;
};
TORCH_MODULE(Net);

void train(Process& process, const Options& options, const examples::Reviews& reviews) {
  Collective& ranks = *process.collective;
  torch::manual_seed(1);
  Net net(reviews.vocabulary_size, options.long_text);
  examples::place(process, *net);
  DataParallel parallel(net.ptr(), ranks, {.find_unused_parameters = true});
  SGD optimizer(net->parameters(), SGD::Options(options.lr));
  DistributedSampler sampler(reviews.train.size(), ranks.world_size(), ranks.rank());
  BatchLoader loader(reviews.train, sampler, static_cast<std::size_t>(options.batch_size));
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    const auto loss = examples::train_epoch(loader, parallel, optimizer, [&](const auto& batch) {
      return parallel.forward(net, batch);
    });
    examples::say_epoch(process, epoch, options.epochs, loss);
  }
  const double accuracy = examples::accuracy_over(
      ranks, *net, reviews.held_out, 32, [&](const auto& batch) { return net->forward(batch); });
  examples::say_result(process, *net, accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains on film reviews, data-parallel: are they friendly?");
  flags.path("--data", options.data, "folder",
             "folder with train/ and test/, each with neg/ and pos/ (needed)");
  flags.count("--epochs", options.epochs, "passes over the reviews (3)");
  flags.count("--batch-size", options.batch_size, "reviews a worker and step (32)");
  flags.count("--words", options.words, "words that are known, the most frequent ones (20000)");
  flags.count("--length", options.length, "words of a review that count (256)");
  flags.count("--long-text", options.long_text, "words from which on a review is long (200)");
  flags.rate("--lr", options.lr, "learning rate (1)");
  std::optional<examples::Reviews> reviews;
  const auto load = [&] {
    reviews = examples::value_of("--data", [&] {
      return examples::read_reviews(options.data, static_cast<std::size_t>(options.words),
                                    static_cast<std::size_t>(options.length));
    });
  };
  return examples::run_training("imdb", flags, argc, argv, load,
                                [&](Process& process) { train(process, options, *reviews); });
}
