// Our engine and PyTorch's c10d::Reducer train the same model side by side in each rank, on the
// same samples. Gradients and weights must stay equal bit for bit, through PyTorch's bucket
// rebuild. This holds in both gradient modes, for N = 2, 3 and 4.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "tests/worker/forked_ranks.h"
#include "tests/worker/training/data_parallel/reference_backend.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kWidth = 384;  // 0.56 MiB a layer: with the caps below five buckets
constexpr std::size_t kFirstBucketBytes = std::size_t{256} << 10;
constexpr std::size_t kBucketCapBytes = std::size_t{1} << 20;
constexpr int kIterations = 5;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) {
      const auto linear = torch::nn::Linear(kWidth, kWidth);
      layers.emplace_back(register_module("layer" + std::to_string(i), linear));
    }
    head = register_module("head", torch::nn::Linear(kWidth, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return head(x);
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

std::string difference(const at::Tensor& a, const at::Tensor& b) {
  std::ostringstream text;
  text << ", largest difference " << (a - b).abs().max().item<double>() << " of "
       << b.abs().max().item<double>();
  return text.str();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

void copy_weights(Net& from, Net& to) {
  const torch::NoGradGuard no_grad;
  auto source = from->parameters();
  auto target = to->parameters();
  for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

struct Case {
  int ranks;
  bool view;         // gradient_as_bucket_view
  bool set_to_none;  // how gradients are zeroed
};

// GoogleTest's name for it.
void PrintTo(const Case& c, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << c.ranks << (c.view ? " view" : " copy") << (c.set_to_none ? " to none" : " to zero");
}

// Both sides of the comparison in one rank.
class Twins {
 public:
  Twins(const Case& c, Collective& collective) : case_(c), collective_(collective) {
    DataParallelOptions options;
    options.first_bucket_bytes = kFirstBucketBytes;
    options.bucket_cap_bytes = kBucketCapBytes;
    options.gradient_as_bucket_view = c.view;
    parallel_ = std::make_unique<DataParallel>(ours_.ptr(), collective, options);
    copy_weights(ours_, theirs_);  // rank 0's, since ours_ was made data-parallel
    reference_ = make_reference(theirs_->parameters(), collective,
                                {.bucket_cap_bytes = kBucketCapBytes,
                                 .first_bucket_bytes = kFirstBucketBytes,
                                 .gradient_as_bucket_view = c.view});
  }

  // One training step of both on this rank's samples.
  void step(int iteration) {
    torch::manual_seed(1000 + 10 * iteration + collective_.rank());
    const auto samples = torch::randn({8, kWidth});
    const auto labels = torch::randint(10, {8}, torch::kLong);
    our_optimizer_.zero_grad(case_.set_to_none);
    loss(parallel_->forward(ours_, samples), labels).backward();
    backward_of_reference(samples, labels);
  }

  // Does as DistributedDataParallel around a forward.
  void backward_of_reference(const at::Tensor& samples, const at::Tensor& labels) {
    zero_reference();
    reference_->prepare_for_forward();
    if (reference_->rebuild_buckets()) ++rebuilds_;
    const auto output = theirs_(samples);
    reference_->prepare_for_backward({});
    loss(output, labels).backward();
  }

  void expect_equal(const std::string& when) {
    const auto ours = ours_->named_parameters();
    const auto theirs = theirs_->named_parameters();
    for (const auto& item : ours) {
      const at::Tensor& peer = theirs[item.key()];
      ASSERT_TRUE(item.value().grad().defined() && peer.grad().defined());
      EXPECT_TRUE(same_bits(item.value().grad(), peer.grad()))
          << when << ": gradient " << item.key() << difference(item.value().grad(), peer.grad());
      EXPECT_TRUE(same_bits(item.value(), peer))
          << when << ": weight " << item.key() << difference(item.value(), peer);
    }
  }

  void update() {
    our_optimizer_.step();
    their_optimizer_.step();
  }

  // Index lists of PyTorch's current buckets.
  std::vector<std::vector<std::size_t>> reference_buckets() const {
    std::vector<std::vector<std::size_t>> plan;
    const auto parameters = theirs_->parameters();
    for (const auto& bucket : reference_->get_grad_buckets()) {
      auto& indices = plan.emplace_back();
      for (const at::Tensor& parameter : bucket.getParameters()) {
        const auto found = std::ranges::find_if(
            parameters, [&](const at::Tensor& p) { return p.is_same(parameter); });
        indices.push_back(static_cast<std::size_t>(found - parameters.begin()));
      }
    }
    return plan;
  }

  DataParallel& parallel() { return *parallel_; }
  Net& ours() { return ours_; }
  int rebuilds() const { return rebuilds_; }

 private:
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& labels) {
    return torch::nn::functional::cross_entropy(output, labels);
  }
  // PyTorch's views are slices: detach_() of zero_grad would throw.
  void zero_reference() {
    for (at::Tensor& parameter : theirs_->parameters()) {
      if (!parameter.grad().defined()) continue;
      if (case_.set_to_none)
        parameter.mutable_grad().reset();
      else
        parameter.mutable_grad().zero_();
    }
  }

  Case case_;
  Collective& collective_;
  Net ours_;
  Net theirs_;
  torch::optim::SGD our_optimizer_{ours_->parameters(),
                                   torch::optim::SGDOptions(0.1).momentum(0.9)};
  torch::optim::SGD their_optimizer_{theirs_->parameters(),
                                     torch::optim::SGDOptions(0.1).momentum(0.9)};
  std::unique_ptr<DataParallel> parallel_;
  std::unique_ptr<c10d::Reducer> reference_;
  int rebuilds_ = 0;
};

class ReducerParity : public ::testing::TestWithParam<Case> {};

TEST_P(ReducerParity, GradientsAndWeightsAreEqualBitForBit) {
  const Case c = GetParam();
  run_ranks(c.ranks, [c](Collective& collective) {
    at::set_num_threads(1);
    Twins twins(c, collective);
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      twins.step(iteration);
      twins.expect_equal("iteration " + std::to_string(iteration));
      EXPECT_EQ(twins.parallel().buckets(), twins.reference_buckets());
      twins.update();
    }
    EXPECT_EQ(twins.rebuilds(), 1);
    EXPECT_TRUE(twins.parallel().buckets_rebuilt());
    EXPECT_GE(twins.parallel().buckets().size(), 3U);
  });
}

// The comparison can fail: without the sum, ranks' gradients differ.
TEST(ReducerParityItself, LocalGradientsOfRanksDiffer) {
  run_ranks(2, [](Collective& collective) {
    at::set_num_threads(1);
    Twins twins({.ranks = 2, .view = true, .set_to_none = true}, collective);
    const auto no_sync = twins.parallel().no_sync();
    torch::manual_seed(collective.rank());
    twins.parallel().forward(twins.ours(), torch::randn({8, kWidth})).sum().backward();
    const at::Tensor local = twins.ours()->layers[0]->weight.grad().clone();
    at::Tensor root = local.clone();
    collective.broadcast({root.data_ptr(), root.nbytes(), Dtype::kUInt8}, 0);
    EXPECT_EQ(same_bits(local, root), collective.rank() == 0);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {2, 3, 4}) {
    for (const bool view : {true, false}) {
      for (const bool set_to_none : {true, false}) all.push_back({ranks, view, set_to_none});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, ReducerParity, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace ddprun::worker
