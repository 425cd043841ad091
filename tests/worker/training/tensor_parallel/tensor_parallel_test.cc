// Split layers beside the same layers without a split, in float64.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/tensor_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

namespace F = torch::nn::functional;
using SequenceDim = std::optional<std::int64_t>;

constexpr std::int64_t kBatch = 3, kSequence = 8, kFeatures = 12, kWords = 20;
constexpr double kTolerance = 1e-12;

void expect_close(const at::Tensor& ours, const at::Tensor& theirs, const std::string& name) {
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << name;
  EXPECT_TRUE(torch::allclose(ours, theirs, 0, kTolerance)) << name;
}

// This rank's part of a tensor.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, const TensorGroup& group) {
  return whole.chunk(group.size(), dim)[static_cast<std::size_t>(group.rank())];
}

// The tensor that a rank has between split layers.
at::Tensor between(const at::Tensor& whole, const TensorGroup& group) {
  return group.sequence_dim() ? part_of(whole, *group.sequence_dim(), group) : whole;
}

// A small language model without a split.
struct WholeImpl : torch::nn::Module {
  WholeImpl() {
    torch::manual_seed(4);
    words = register_module("words", torch::nn::Embedding(kWords, kFeatures));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})));
    up = register_module("up", torch::nn::Linear(kFeatures, 4 * kFeatures));
    down = register_module("down", torch::nn::Linear(4 * kFeatures, kFeatures));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(kFeatures, kWords).bias(false)));
    to(torch::kDouble);
    const torch::NoGradGuard no_gradients;
    norm->weight.uniform_(0.5, 2);
    norm->bias.uniform_(-1, 1);
  }
  at::Tensor hidden(const at::Tensor& ids) {
    const auto x = words(ids);
    return x + down(torch::gelu(up(norm(x))));
  }
  at::Tensor logits(const at::Tensor& ids) { return head(hidden(ids)).flatten(0, 1); }

  torch::nn::Embedding words{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
};
TORCH_MODULE(Whole);

// The same with its layers split.
struct SplitImpl : torch::nn::Module {
  SplitImpl(const TensorGroup& group, Whole& whole) {
    words = register_module("words",
                            VocabEmbedding(torch::nn::EmbeddingOptions(kWords, kFeatures), group));
    norm =
        register_module("norm", SequenceLayerNorm(torch::nn::LayerNormOptions({kFeatures}), group));
    up = register_module("up",
                         ColumnLinear(torch::nn::LinearOptions(kFeatures, 4 * kFeatures), group));
    down = register_module("down",
                           RowLinear(torch::nn::LinearOptions(4 * kFeatures, kFeatures), group));
    head = register_module(
        "head", ColumnLinear(torch::nn::LinearOptions(kFeatures, kWords).bias(false), group));
    to(torch::kDouble);
    words->assign(whole->words);
    up->assign(whole->up);
    down->assign(whole->down);
    head->assign(whole->head);
    const torch::NoGradGuard no_gradients;
    norm->weight.copy_(whole->norm->weight);
    norm->bias.copy_(whole->norm->bias);
  }
  at::Tensor hidden(const at::Tensor& ids) {
    const auto x = words(ids);
    return x + down(torch::gelu(up(norm(x))));
  }
  at::Tensor logits(const at::Tensor& ids) { return head(hidden(ids)).flatten(0, 1); }

  VocabEmbedding words{nullptr};
  SequenceLayerNorm norm{nullptr};
  ColumnLinear up{nullptr}, head{nullptr};
  RowLinear down{nullptr};
};
TORCH_MODULE(Split);

at::Tensor ids_of(std::int64_t seed) {
  torch::manual_seed(seed);
  return torch::randint(kWords, {kBatch, kSequence}, torch::kLong);
}

at::Tensor targets_of(std::int64_t seed) {
  auto targets = ids_of(seed + 100).flatten();
  targets[1] = -100;  // ignored
  return targets;
}

void expect_same_gradients(Split& split, Whole& whole, const TensorGroup& group) {
  const auto close = [&](const at::Tensor& ours, const at::Tensor& theirs,
                         const std::optional<std::int64_t>& dim, const char* name) {
    expect_close(ours.grad(), dim ? part_of(theirs.grad(), *dim, group) : theirs.grad(), name);
  };
  close(split->words->weight, whole->words->weight, 0, "words");
  close(split->norm->weight, whole->norm->weight, {}, "norm.weight");
  close(split->norm->bias, whole->norm->bias, {}, "norm.bias");
  close(split->up->weight, whole->up->weight, 0, "up.weight");
  close(split->up->bias, whole->up->bias, 0, "up.bias");
  close(split->down->weight, whole->down->weight, 1, "down.weight");
  close(split->down->bias, whole->down->bias, {}, "down.bias");
  close(split->head->weight, whole->head->weight, 0, "head");
}

void expect_as_whole(int ranks, SequenceDim sequence_dim) {
  run_torch_ranks(ranks, [&](Collective& collective) {
    const TensorGroup group(collective, sequence_dim);
    Whole whole;
    Split split(group, whole);
    SGD ours(split->parameters(), SGD::Options(0.5));
    SGD theirs(whole->parameters(), SGD::Options(0.5));
    for (int step = 0; step < 3; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      const auto ids = ids_of(step), targets = targets_of(step);
      expect_close(split->hidden(ids), between(whole->hidden(ids), group), "hidden");
      const auto loss = parallel_cross_entropy(split->logits(ids), targets, group);
      const auto whole_loss = F::cross_entropy(whole->logits(ids), targets);
      expect_close(loss, whole_loss, "loss");
      loss.backward();
      whole_loss.backward();
      expect_same_gradients(split, whole, group);
      ours.step();
      theirs.step();
    }
    for (const at::Tensor& parameter : {split->norm->weight, split->norm->bias, split->down->bias})
      expect_equal_on_all_ranks(parameter, collective);
  });
}

TEST(TensorParallel, TrainsAsTheWholeModel) {
  for (const int ranks : {1, 2, 4}) expect_as_whole(ranks, {});
}

TEST(TensorParallel, SplitsTheSequenceBetweenItsLayers) {
  for (const int ranks : {1, 2, 4}) expect_as_whole(ranks, 1);
}

TEST(TensorParallel, SplitsAFirstDimensionOfTheSequence) {
  run_torch_ranks(2, [](Collective& ranks) {
    const TensorGroup group(ranks, 0);
    Whole whole;
    Split split(group, whole);
    const auto ids = ids_of(1).t().contiguous();
    split->hidden(ids).pow(2).sum().backward();
    whole->hidden(ids).pow(2).sum().backward();
    expect_close(split->norm->weight.grad(), whole->norm->weight.grad(), "norm");
    expect_close(split->down->bias.grad(), whole->down->bias.grad(), "bias");
  });
}

// Expects so many operations of a rank in the two passes of a block of two layers.
void expect_calls_of_a_block(SequenceDim sequence_dim, int forward, int backward) {
  run_torch_ranks(2, [&](Collective& ranks) {
    CountingCollective counting(ranks);
    const TensorGroup group(counting, sequence_dim);
    ColumnLinear up(torch::nn::LinearOptions(4, 8), group);
    RowLinear down(torch::nn::LinearOptions(8, 4), group);
    const auto x = torch::ones({2, 2, 4}).requires_grad_();
    int before = counting.calls;
    const auto y = down(torch::relu(up(x)));
    EXPECT_EQ(counting.calls - before, forward);
    before = counting.calls;
    y.sum().backward();
    EXPECT_EQ(counting.calls - before, backward);
    EXPECT_EQ(counting.summed.empty(), sequence_dim.has_value());
  });
}

TEST(TensorParallel, SumsOnceForwardAndOnceBackwardInABlock) { expect_calls_of_a_block({}, 1, 1); }

TEST(TensorParallel, GathersAndScattersASumInItsPlaceWithSequenceParallel) {
  expect_calls_of_a_block(1, 2, 2);
}

TEST(TensorParallel, HasItsInitialWeightsFromRank0AndGivesThemBack) {
  run_torch_ranks(4, [](Collective& ranks) {
    torch::manual_seed(ranks.rank());  // other random numbers on each rank
    const TensorGroup group(ranks);
    const ColumnLinear column(torch::nn::LinearOptions(6, 8), group);
    const RowLinear row(torch::nn::LinearOptions(8, 6), group);
    const VocabEmbedding words(torch::nn::EmbeddingOptions(12, 5), group);
    torch::manual_seed(0);
    const torch::nn::Linear first(6, 8), second(8, 6);
    const torch::nn::Embedding third(12, 5);
    EXPECT_TRUE(torch::equal(column->whole()->weight, first->weight));
    EXPECT_TRUE(torch::equal(column->whole()->bias, first->bias));
    EXPECT_TRUE(torch::equal(row->whole()->weight, second->weight));
    EXPECT_TRUE(torch::equal(row->whole()->bias, second->bias));
    EXPECT_TRUE(torch::equal(words->whole()->weight, third->weight));
    EXPECT_EQ(column->weight.sizes(), at::IntArrayRef({2, 6}));
    EXPECT_EQ(row->weight.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_EQ(words->weight.sizes(), at::IntArrayRef({3, 5}));
  });
}

TEST(TensorParallel, SplitsAndGathersWithTheGradientsOfWhatTheyDo) {
  run_torch_ranks(2, [](Collective& ranks) {
    const TensorGroup group(ranks);
    const auto x = torch::arange(12, torch::kDouble).view({2, 6}).requires_grad_();
    const auto part = group.split(x, -1);
    EXPECT_TRUE(torch::equal(part, part_of(x, 1, group)));
    const auto back = group.gather(part * 2, 1);
    EXPECT_TRUE(torch::equal(back, x * 2));
    (back * x.detach()).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), 2 * x.detach()));
  });
}

TEST(TensorParallel, GivesTheLossOfEachRowOrTheirSum) {
  run_torch_ranks(2, [](Collective& ranks) {
    const TensorGroup group(ranks);
    torch::manual_seed(8);
    const auto logits = torch::randn({5, 6}, torch::kDouble) * 30;
    const auto targets = torch::tensor({0L, 5L, 2L, -1L, 3L});
    for (const auto reduction : {at::Reduction::None, at::Reduction::Sum, at::Reduction::Mean}) {
      const auto ours = logits.clone().requires_grad_(), theirs = logits.clone().requires_grad_();
      const auto loss = parallel_cross_entropy(group.split(ours, 1), targets, group,
                                               {.reduction = reduction, .ignore_index = -1});
      const auto expected =
          at::cross_entropy_loss(theirs, targets, {}, static_cast<std::int64_t>(reduction), -1);
      expect_close(loss, expected, "loss");
      const auto weights = torch::arange(1, 1 + loss.numel(), torch::kDouble).view(loss.sizes());
      (loss * weights).sum().backward();
      (expected * weights).sum().backward();
      expect_close(ours.grad(), theirs.grad(), "gradient");
    }
  });
}

TEST(TensorParallel, GoesBesideDataParallelOfAnotherGroup) {
  run_torch_ranks(4, [](Collective& ranks) {
    const Mesh mesh(ranks, {{"data", 2}, {"tensor", 2}});
    Collective& data = mesh.along("data");
    EXPECT_EQ(data.rank(), ranks.rank() / 2);
    const TensorGroup group(mesh.along("tensor"), 1);
    EXPECT_EQ(message_of([&] { mesh.along("pipeline"); }),
              "Mesh: axis 'pipeline' given, expected data, tensor");
    Whole whole;
    Split split(group, whole);
    DataParallel parallel(split.ptr(), data);
    SGD ours(split->parameters(), SGD::Options(0.5));
    SGD theirs(whole->parameters(), SGD::Options(0.5));
    for (int step = 0; step < 3; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      parallel.before_forward();
      const auto mine = ids_of(10 * step + data.rank());
      const auto targets = targets_of(10 * step + data.rank());
      const auto loss = parallel_cross_entropy(split->logits(mine), targets, group);
      parallel.after_forward();
      loss.backward();
      for (int rank = 0; rank < 2; ++rank) {
        const auto of_rank =
            F::cross_entropy(whole->logits(ids_of(10 * step + rank)), targets_of(10 * step + rank));
        (of_rank / 2).backward();
      }
      expect_same_gradients(split, whole, group);
      parallel.step(ours);
      theirs.step();
    }
  });
}

// The message of an error that all ranks have, and no rank waits for.
void expect_refusal(const std::string& message, const std::function<void(const TensorGroup&)>& body,
                    SequenceDim dim = {}) {
  run_torch_ranks(4, [&](Collective& ranks) {
    const TensorGroup group(ranks, dim);
    EXPECT_EQ(message_of([&] { body(group); }), message);
  });
}

TEST(TensorParallel, RefusesLayersThatTheGroupDoesNotDivide) {
  using torch::nn::EmbeddingOptions, torch::nn::LinearOptions;
  expect_refusal("ColumnLinear: out_features 6 given, expected a multiple of the group's 4 ranks",
                 [](const TensorGroup& group) { ColumnLinear(LinearOptions(8, 6), group); });
  expect_refusal("RowLinear: in_features 6 given, expected a multiple of the group's 4 ranks",
                 [](const TensorGroup& group) { RowLinear(LinearOptions(6, 8), group); });
  expect_refusal(
      "VocabEmbedding: num_embeddings 30 given, expected a multiple of the group's 4 ranks",
      [](const TensorGroup& group) { VocabEmbedding(EmbeddingOptions(30, 8), group); });
  expect_refusal(
      "VocabEmbedding: an option beside num_embeddings and embedding_dim given, expected these two",
      [](const TensorGroup& group) {
        VocabEmbedding(EmbeddingOptions(32, 8).padding_idx(0), group);
      });
}

TEST(TensorParallel, RefusesInputsThatDoNotFit) {
  using torch::nn::EmbeddingOptions, torch::nn::LinearOptions;
  expect_refusal("ColumnLinear: an input of 7 features given, expected 8",
                 [](const TensorGroup& group) {
                   ColumnLinear(LinearOptions(8, 4), group)->forward(torch::ones({2, 7}));
                 });
  expect_refusal("RowLinear: an input of 8 features given, expected 2",
                 [](const TensorGroup& group) {
                   RowLinear(LinearOptions(8, 4), group)->forward(torch::ones({2, 8}));
                 });
  expect_refusal("VocabEmbedding: ids -1 to 8 given, expected 0 to 7", [](const TensorGroup&
                                                                              group) {
    VocabEmbedding(EmbeddingOptions(8, 2), group)->forward(torch::tensor({{8L, 0L}, {-1L, 3L}}));
  });
  expect_refusal(
      "TensorGroup: a dimension of size 6 given, expected a multiple of the group's 4 ranks",
      [](const TensorGroup& group) {
        RowLinear(LinearOptions(8, 4), group)->forward(torch::ones({1, 6, 2}));
      },
      1);
  expect_refusal("parallel_cross_entropy: targets 0 to 8 given, expected 0 to 7",
                 [](const TensorGroup& group) {
                   parallel_cross_entropy(torch::ones({2, 2}), torch::tensor({8L, 0L}), group);
                 });
  expect_refusal(
      "parallel_cross_entropy: logits of 2 dimensions and 3 targets given, expected (rows, "
      "classes/ranks) and as many targets as rows",
      [](const TensorGroup& group) {
        parallel_cross_entropy(torch::ones({2, 2}), torch::tensor({1L, 0L, 0L}), group);
      });
  expect_refusal("ColumnLinear: assign() of a layer with another size than its own whole",
                 [](const TensorGroup& group) {
                   ColumnLinear(LinearOptions(8, 4), group)->assign(torch::nn::Linear(4, 4));
                 });
}

TEST(TensorParallel, TellsOfARankThatCallsAnotherLayer) {
  run_torch_ranks(2, [](Collective& ranks) {
    const TensorGroup group(ranks);
    RowLinear row(torch::nn::LinearOptions(4, 3), group);
    VocabEmbedding words(torch::nn::EmbeddingOptions(8, 2), group);
    const auto message = message_of([&] {
      ranks.rank() == 0 ? row(torch::ones({2, 2})) : words(torch::zeros({5}, torch::kLong));
    });
    EXPECT_NE(message.find("sum of a split layer"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
}

TEST(TensorParallel, HasNoSecondGradient) {
  run_torch_ranks(2, [](Collective& ranks) {
    const TensorGroup group(ranks);
    const auto x = torch::ones({2}).requires_grad_();
    const auto y = group.copy(x).pow(2).sum();
    EXPECT_EQ(message_of([&] { torch::autograd::grad({y}, {x}, {}, true, true); }),
              "TensorGroup: its gradient cannot be differentiated again (create_graph)");
  });
}

TEST(TensorParallel, SaysWhatALayerIs) {
  run_torch_ranks(2, [](Collective& ranks) {
    std::ostringstream text;
    text << ColumnLinear(torch::nn::LinearOptions(4, 6), TensorGroup(ranks));
    EXPECT_EQ(text.str(),
              "ddprun::ColumnLinear(in_features=4, out_features=6, bias=true, ranks=2)");
  });
}

}  // namespace
}  // namespace ddprun::worker
