#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ddprun/comm_hook.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "worker/training/tensors/summable.h"

namespace ddprun {

using namespace worker;

namespace {

// One gradient M (rows x columns), as a batch of one. So are the thin matrices P (rows x rank) and
// Q (columns x rank).
struct LowRankFactors {
  at::Tensor m;
  at::Tensor p;
  at::Tensor q;
};

// The state of a bucket between passes, and its work of this pass.
struct BucketState {
  std::vector<at::Tensor> parameters;  // a rebuilt bucket has others
  at::Tensor error;                    // undefined before the first compressed pass
  at::Tensor plain_sum;                // flat, in memory of the collective, as the next two
  at::Tensor ps;
  at::Tensor qs;
  std::vector<LowRankFactors> thin;
  std::vector<at::Tensor> plain;  // gradients that travel as they are
  at::Tensor input;
  bool has_qs = false;
};

std::int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

// Column after column: to length 1, and out of those that follow.
void gram_schmidt(const at::Tensor& matrix, double epsilon) {
  const std::int64_t columns = matrix.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrix.narrow(2, i, 1);
    column.div_(at::norm(column, 2, {1}, /*keepdim=*/true) + epsilon);
    if (i + 1 == columns) break;
    at::Tensor rest = matrix.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum({1}, /*keepdim=*/true) * column);
  }
}

void orthogonalize(at::Tensor& matrix, double epsilon) {
  const bool narrow = matrix.scalar_type() == at::kHalf || matrix.scalar_type() == at::kBFloat16;
  if (matrix.size(2) <= 2 || narrow)
    gram_schmidt(matrix, epsilon);
  else
    matrix.copy_(std::get<0>(at::linalg_qr(matrix)));
}

bool same_parameters(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b,
                            [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

class PowerSgd {
 public:
  explicit PowerSgd(const PowerSgdOptions& options)
      : options_(options), seeds_(options.random_seed) {}

  void run(Bucket& bucket, Collective& collective) {
    const at::NoGradGuard no_grad;
    if (bucket.index() == 0) draws_ = seeds_;
    if (iteration_ < options_.start_iteration)
      all_reduce_(bucket, collective);
    else
      compress(bucket, states_[bucket.index()], collective);
    // A pass that was given up does not count, on any rank.
    if (bucket.is_last()) {
      bucket.then([this] {
        ++iteration_;
        seeds_ = draws_;
      });
    }
  }

 private:
  void compress(Bucket& bucket, BucketState& state, Collective& collective) {
    if (!same_parameters(state.parameters, bucket.parameters())) state = carved(bucket, collective);
    const at::Tensor buffer = bucket.buffer();
    if (options_.use_error_feedback && state.error.defined()) buffer.add_(state.error);
    state.input = buffer.clone();
    if (!state.plain.empty()) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& tensor : state.plain) flat.push_back(tensor.reshape(-1));
      state.plain_sum.copy_(at::cat(flat));
      bucket.sum(state.plain_sum);
    }
    begin_qs(state);
    for (LowRankFactors& thin : state.thin) at::bmm_out(thin.p, thin.m, thin.q);
    if (!state.thin.empty()) bucket.sum(state.ps);
    bucket.then([this, &bucket, &state, &collective] { decompress(bucket, state, collective); });
  }

  // Decides which gradients are compressed, and where their thin matrices lie.
  BucketState carved(const Bucket& bucket, Collective& collective) const {
    BucketState state{.parameters = bucket.parameters()};
    // As in PyTorch matrices of one shape come together. So the random numbers fall alike.
    std::vector<std::vector<at::Tensor>> by_shape;
    std::int64_t ps = 0;
    std::int64_t qs = 0;
    for (const at::Tensor& gradient : bucket.gradients()) {
      if (!worth_compressing(gradient)) {
        state.plain.push_back(gradient);
        continue;
      }
      const at::Tensor matrix = gradient.view({gradient.size(0), -1});
      ps += matrix.size(0) * rank_of(matrix);
      qs += matrix.size(1) * rank_of(matrix);
      const auto same = std::ranges::find_if(
          by_shape, [&](const auto& group) { return group.front().sizes() == matrix.sizes(); });
      if (same == by_shape.end())
        by_shape.push_back({matrix});
      else
        same->push_back(matrix);
    }
    const auto options = bucket.buffer().options();
    state.plain_sum = allocate_tensor(elements_of(state.plain), options, collective);
    state.ps = allocate_tensor(ps, options, collective);
    state.qs = allocate_tensor(qs, options, collective);
    add_thin(by_shape, state);
    return state;
  }

  void add_thin(const std::vector<std::vector<at::Tensor>>& by_shape, BucketState& state) const {
    std::int64_t ps = 0;
    std::int64_t qs = 0;
    const auto part = [](const at::Tensor& flat, std::int64_t& begin, std::int64_t rows,
                         std::int64_t rank) {
      at::Tensor thin = flat.narrow(0, begin, rows * rank).view({1, rows, rank});
      begin += rows * rank;
      return thin;
    };
    for (const auto& group : by_shape) {
      for (const at::Tensor& matrix : group) {
        const std::int64_t rank = rank_of(matrix);
        state.thin.push_back({matrix.unsqueeze(0), part(state.ps, ps, matrix.size(0), rank),
                              part(state.qs, qs, matrix.size(1), rank)});
      }
    }
  }

  std::int64_t rank_of(const at::Tensor& matrix) const {
    return std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
  }

  // Vectors, and what would not shrink enough, travel as they are.
  bool worth_compressing(const at::Tensor& gradient) const {
    if (gradient.dim() == 0 || gradient.numel() == 0 || !gradient.is_contiguous()) return false;
    const at::Tensor matrix = gradient.view({gradient.size(0), -1});
    const auto thin = static_cast<double>((matrix.size(0) + matrix.size(1)) * rank_of(matrix));
    return thin * options_.min_compression_rate < static_cast<double>(matrix.numel());
  }

  // Random where there are none of the pass before: the same on all ranks.
  void begin_qs(BucketState& state) {
    const bool random = !options_.warm_start || !state.has_qs;
    const auto generator =
        random ? at::make_generator<at::CPUGeneratorImpl>(next_seed()) : at::Generator();
    for (LowRankFactors& thin : state.thin) {
      if (random) {
        thin.q.copy_(at::randn(thin.q.sizes(), generator, at::TensorOptions(thin.q.scalar_type())));
      }
      orthogonalize(thin.q, options_.orthogonalization_epsilon);
    }
  }

  // A number below 10^9, as numpy.random.RandomState.randint draws it: numbers of 30 bits, until
  // one is small enough (numpy/random/src/distributions/distributions.c,
  // buffered_bounded_masked_uint32).
  std::uint64_t next_seed() {
    constexpr std::uint64_t kLimit = 1'000'000'000;
    constexpr std::uint64_t kMask = (std::uint64_t{1} << 30U) - 1;
    std::uint64_t drawn = kLimit;
    while (drawn >= kLimit) drawn = draws_() & kMask;
    return drawn;
  }

  void decompress(Bucket& bucket, BucketState& state, Collective& collective) {
    const at::NoGradGuard no_grad;
    const int ranks = collective.world_size();
    std::int64_t begin = 0;
    if (!state.plain.empty()) state.plain_sum.div_(ranks);
    for (at::Tensor& gradient : state.plain) {
      gradient.copy_(state.plain_sum.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
    for (LowRankFactors& thin : state.thin) {
      orthogonalize(thin.p, options_.orthogonalization_epsilon);
      at::bmm_out(thin.q, thin.m.transpose(1, 2), thin.p);
    }
    if (!state.thin.empty()) {
      collective.wait(collective.launch_sum(flat_of(state.qs)));
      state.qs.div_(ranks);
    }
    for (LowRankFactors& thin : state.thin) at::bmm_out(thin.m, thin.p, thin.q.transpose(1, 2));
    if (options_.use_error_feedback) state.error = state.input - bucket.buffer();
    state.input.reset();
    state.has_qs = true;
  }

  PowerSgdOptions options_;
  CommHook all_reduce_ = all_reduce_hook();
  std::mt19937 seeds_;  // after the passes that were summed
  std::mt19937 draws_;  // of this pass
  std::int64_t iteration_ = 0;
  std::map<std::size_t, BucketState> states_;  // by bucket
};

}  // namespace

CommHook power_sgd_hook(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1) {
    throw std::invalid_argument(
        fmt::format("power_sgd_hook: matrix_approximation_rank is {}, expected 1 or more",
                    options.matrix_approximation_rank));
  }
  if (options.start_iteration < 2) {
    throw std::invalid_argument(fmt::format(
        "power_sgd_hook: start_iteration is {}, expected 2 or more: the buckets are rebuilt after "
        "the "
        "first pass",
        options.start_iteration));
  }
  return [hook = std::make_shared<PowerSgd>(options)](Bucket& bucket, Collective& collective) {
    hook->run(bucket, collective);
  };
}

}  // namespace ddprun
