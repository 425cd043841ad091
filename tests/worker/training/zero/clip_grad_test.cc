// clip_grad_norm() has the norm and the gradients of Python's clip_grad_norm_(), which are compared
// with its operations one by one. It reads no number, so the host need not wait for a GPU.
#include <ATen/ops/linalg_vector_norm.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <limits>
#include <vector>

#include "tests/worker/counted_operations.h"

namespace ddprun::worker {
namespace {

// Parameters with gradients of some types. One has no gradient.
std::vector<at::Tensor> clipped_of(const std::vector<at::ScalarType>& types) {
  torch::manual_seed(9);
  std::vector<at::Tensor> parameters;
  for (const at::ScalarType type : types) {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{31, 7}, {129}, {}}) {
      parameters.push_back(torch::zeros(sizes, type).requires_grad_(true));
      parameters.back().mutable_grad() = torch::randn(sizes).to(type);
    }
    parameters.push_back(torch::zeros({3}, type).requires_grad_(true));
  }
  return parameters;
}

void expect_gradients_near(const std::vector<at::Tensor>& ours,
                           const std::vector<at::Tensor>& theirs, double tolerance) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined());
    if (!ours[i].grad().defined()) continue;
    EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), tolerance, 0)) << i;
  }
}

const std::vector<double> kOrders{1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()};

TEST(ClipGradNorm, IsThatOfLibTorch) {
  for (const double order : kOrders) {
    for (const double most : {0.5, 1e6}) {
      const auto ours = clipped_of({at::kDouble}), theirs = clipped_of({at::kDouble});
      const at::Tensor norm = clip_grad_norm(ours, most, order);
      const double expected = torch::nn::utils::clip_grad_norm_(theirs, most, order);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-12 * expected);
      expect_gradients_near(ours, theirs, 1e-12);
    }
  }
}

// As torch/nn/utils/clip_grad.py of 2.11 does, one gradient after the other.
TEST(ClipGradNorm, HasTheBitsOfPythons) {
  for (const double order : kOrders) {
    const auto ours = clipped_of({at::kFloat}), theirs = clipped_of({at::kFloat});
    const at::Tensor norm = clip_grad_norm(ours, 0.7, order);
    std::vector<at::Tensor> norms;
    for (const at::Tensor& parameter : theirs) {
      if (parameter.grad().defined())
        norms.push_back(at::linalg_vector_norm(parameter.grad(), order));
    }
    const at::Tensor total = at::linalg_vector_norm(torch::stack(norms), order);
    EXPECT_TRUE(torch::equal(norm, total));
    const at::Tensor factor = torch::clamp_max((total + 1e-6).reciprocal() * 0.7, 1.0);
    for (const at::Tensor& parameter : theirs) {
      if (parameter.grad().defined()) parameter.grad().mul_(factor);
    }
    expect_gradients_near(ours, theirs, 0);
  }
}

TEST(ClipGradNorm, LeavesSmallGradientsAsTheyAre) {
  const auto ours = clipped_of({at::kFloat}), before = clipped_of({at::kFloat});
  clip_grad_norm(ours, 1e6);
  expect_gradients_near(ours, before, 0);
}

TEST(ClipGradNorm, IsOverAllTypesAndReadsNoNumber) {
  const auto parameters = clipped_of({at::kFloat, at::kDouble, at::kBFloat16});
  at::Tensor norm;
  {
    const CountedOperations counted;
    norm = clip_grad_norm(parameters, 2.0);
    EXPECT_EQ(counted.of("_foreach_norm"), 3) << "one for each type";
    EXPECT_EQ(counted.of("_foreach_mul_"), 3);
  }
  EXPECT_GT(norm.item<double>(), 2.0);
  EXPECT_NEAR(clip_grad_norm(parameters, 1e6).item<double>(), 2.0, 1e-2);
}

TEST(ClipGradNorm, GivesNotANumberForAnInfinityAsPythonDoes) {
  const auto parameters = clipped_of({at::kFloat});
  parameters[1].grad().fill_(std::numeric_limits<float>::infinity());
  EXPECT_TRUE(clip_grad_norm(parameters, 1.0).isinf().item<bool>());
  EXPECT_TRUE(parameters[1].grad().isnan().all().item<bool>());
  EXPECT_TRUE(torch::equal(parameters[0].grad(), torch::zeros({31, 7})));
}

TEST(ClipGradNorm, OfNoGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm({torch::zeros({3}).requires_grad_(true)}, 1.0).item<double>(), 0);
  EXPECT_EQ(clip_grad_norm({}, 1.0).item<double>(), 0);
}

}  // namespace
}  // namespace ddprun::worker
