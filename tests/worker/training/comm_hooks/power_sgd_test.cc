// PowerSGD in forked ranks. python_parity_test.py compares it with PyTorch's on the same gradients.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

// A matrix, a vector and a number; their gradients are what forward() is given.
struct MatrixNetImpl : torch::nn::Module {
  MatrixNetImpl() {
    matrix = register_parameter("matrix", torch::zeros({20, 16}));
    vector = register_parameter("vector", torch::zeros(7));
    number = register_parameter("number", torch::zeros({}));
  }
  torch::Tensor forward(const torch::Tensor& gradient) {
    return (matrix * gradient).sum() + vector.sum() * gradient[0][0] + number * gradient[1][1];
  }
  torch::Tensor matrix, vector, number;
};
TORCH_MODULE(MatrixNet);

// The matrix's gradient after a pass.
at::Tensor pass(DataParallel& parallel, MatrixNet& net, const at::Tensor& gradient) {
  net->zero_grad();
  parallel.forward(net, gradient).backward();
  return net->matrix.grad().clone();
}

at::Tensor random_matrix(int seed, std::int64_t rank) {
  torch::manual_seed(seed);
  return torch::randn({20, rank}).mm(torch::randn({rank, 16}));
}

TEST(PowerSgd, ReproducesAGradientWhoseRankIsLowEnough) {
  for (const std::int64_t rank : {2, 4}) {
    run_torch_ranks(2, [rank](Collective& collective) {
      MatrixNet net;
      DataParallel parallel(net.ptr(), collective);
      parallel.comm_hook(power_sgd_hook(
          {.matrix_approximation_rank = rank, .start_iteration = 2, .min_compression_rate = 0.5}));
      const auto truth = (random_matrix(0, rank / 2) + random_matrix(1, rank / 2)) / 2;
      for (int i = 0; i < 4; ++i) {
        const auto mine = random_matrix(collective.rank(), rank / 2);
        const auto gradient = pass(parallel, net, mine);
        EXPECT_TRUE(torch::allclose(gradient, truth, 1e-5, 1e-5)) << i;
        EXPECT_NEAR(
            net->vector.grad()[6].item<float>(),
            (random_matrix(0, rank / 2)[0][0] + random_matrix(1, rank / 2)[0][0]).item<float>() / 2,
            1e-6);
      }
    });
  }
}

// The mean of many passes with the same gradient, of too high a rank.
double error_of_mean(Collective& collective, bool feedback) {
  constexpr int kPasses = 60;
  MatrixNet net;
  DataParallel parallel(net.ptr(), collective);
  parallel.comm_hook(power_sgd_hook(
      {.matrix_approximation_rank = 1, .start_iteration = 2, .use_error_feedback = feedback}));
  const auto truth = (random_matrix(0, 16) + random_matrix(1, 16)) / 2;
  const auto mine = random_matrix(collective.rank(), 16);
  for (int i = 0; i < 2; ++i) pass(parallel, net, mine);
  at::Tensor sum = torch::zeros({20, 16});
  for (int i = 0; i < kPasses; ++i) sum += pass(parallel, net, mine);
  return ((sum / kPasses - truth).norm() / truth.norm()).item<double>();
}

TEST(PowerSgd, SendsLaterWhatDidNotFit) {
  run_torch_ranks(2, [](Collective& collective) {
    EXPECT_LT(error_of_mean(collective, true), 0.3);
    EXPECT_GT(error_of_mean(collective, false), 0.6);
  });
}

TEST(PowerSgd, SendsLessAlsoOfComplexMatrices) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    torch::nn::Linear real(40, 30);
    torch::nn::Linear complex(40, 30);
    complex->to(torch::kComplexFloat);
    const auto bytes_of_last_pass = [&](auto& net) {
      DataParallel parallel(net.ptr(), collective);
      parallel.comm_hook(power_sgd_hook({.matrix_approximation_rank = 2, .start_iteration = 2}));
      const auto type = net->weight.scalar_type();
      std::size_t bytes = 0;
      for (int pass = 0; pass < 4; ++pass) {
        collective.summed.clear();
        net->zero_grad();
        torch::manual_seed(collective.rank());
        torch::abs(parallel.forward(net, torch::randn({5, 40}).to(type))).sum().backward();
        bytes = 0;
        for (const Flat& flat : collective.summed) bytes += flat.bytes();
      }
      double sum = torch::view_as_real(net->weight.grad().to(torch::kComplexFloat))
                       .abs()
                       .sum()
                       .template item<double>();
      const double mine = sum;
      collective.sum({&sum, 1});
      EXPECT_EQ(sum, 2 * mine) << "ranks have parted";
      return bytes;
    };
    EXPECT_EQ(bytes_of_last_pass(real), 4U * (2 * (40 + 30) + 30));
    // As pairs of numbers, 30 x 80; the bias is a matrix of pairs, too small to shrink.
    EXPECT_EQ(bytes_of_last_pass(complex), 4U * (2 * (80 + 30) + 60));
  });
}

TEST(PowerSgd, RefusesWhatCannotWork) {
  EXPECT_EQ(message_of([] { power_sgd_hook({.matrix_approximation_rank = 0}); }),
            "power_sgd_hook: matrix_approximation_rank is 0, expected 1 or more");
  EXPECT_EQ(
      message_of([] { power_sgd_hook({.start_iteration = 1}); }),
      "power_sgd_hook: start_iteration is 1, expected 2 or more: the buckets are rebuilt after "
      "the first pass");
}

}  // namespace
}  // namespace ddprun::worker
