#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <ddprun/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

#include "worker/training/tensor_parallel/divided.h"
#include "worker/training/tensors/held_collective.h"

namespace ddprun {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The targets among this rank's classes. All have the rows' size.
struct OwnTargets {
  at::Tensor index;   // 0 where the target is another rank's class, or ignored
  at::Tensor others;  // bool: another rank's class
  at::Tensor counts;  // bool: not ignored
};

OwnTargets own_targets(const at::Tensor& targets, std::int64_t first, std::int64_t classes,
                       std::int64_t ignored) {
  const at::Tensor counts = targets.ne(ignored);
  const at::Tensor mine = targets.masked_fill(counts.logical_not(), 0) - first;
  const at::Tensor others = mine.lt(0).logical_or_(mine.ge(classes));
  return {mine.masked_fill(others, 0), others, counts};
}

// The rows' losses, and the logarithms of this rank's softmax in the graph. The steps and their
// order are those of torch/distributed/tensor/parallel/loss.py of 2.11.
class RowLosses : public torch::autograd::Function<RowLosses> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const OwnTargets& targets, const Collective& ranks,
                            const std::shared_ptr<TensorCollective>& tensors) {
    const bool sums = ranks.world_size() > 1;
    at::Tensor largest = logits.amax(1, /*keepdim=*/true);
    if (sums) tensors->all_reduce(largest, Reduction::kMax, "cross entropy maximum");
    const at::Tensor shifted = logits - largest;
    const at::Tensor total = shifted.exp().sum(1, /*keepdim=*/true);
    if (sums) tensors->all_reduce(total, Reduction::kSum, "cross entropy sum");
    const at::Tensor log_softmax = shifted - total.log();
    const at::Tensor at_target = log_softmax.gather(1, targets.index.unsqueeze(1))
                                     .squeeze(1)
                                     .masked_fill_(targets.others, 0);
    if (sums) tensors->all_reduce(at_target, Reduction::kSum, "cross entropy target");
    context->save_for_backward({log_softmax, targets.index, targets.others, targets.counts});
    return at_target.neg_().masked_fill_(targets.counts.logical_not(), 0);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    worker::refuse_second_gradient("parallel_cross_entropy");
    const auto saved = context->get_saved_variables();
    const auto& [log_softmax, index, others, counts] =
        std::tie(saved[0], saved[1], saved[2], saved[3]);
    const at::Tensor row = gradients[0].masked_fill(counts.logical_not(), 0).unsqueeze(1);
    at::Tensor result = log_softmax.exp();
    const at::Tensor less = others.to(result.scalar_type()).sub_(1).unsqueeze(1);
    result.scatter_add_(1, index.unsqueeze(1), less).mul_(row);
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check(const at::Tensor& logits, const at::Tensor& targets, const TensorGroup& group,
           std::int64_t ignored) {
  worker::require(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0) &&
                      logits.size(1) > 0,
                  "parallel_cross_entropy: logits of {} dimensions and {} targets given, expected "
                  "(rows, classes/ranks) and as many targets as rows",
                  logits.dim(), targets.numel());
  worker::require(targets.scalar_type() == at::kLong,
                  "parallel_cross_entropy: targets of another type given, expected int64");
  if (!targets.is_cpu()) return;
  const at::Tensor counted = targets.masked_select(targets.ne(ignored));
  if (counted.numel() == 0) return;
  const std::int64_t classes = logits.size(1) * group.size();
  const std::int64_t least = counted.min().item<std::int64_t>();
  const std::int64_t most = counted.max().item<std::int64_t>();
  worker::require(least >= 0 && most < classes,
                  "parallel_cross_entropy: targets {} to {} given, expected 0 to {}", least, most,
                  classes - 1);
}

}  // namespace

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const TensorGroup& group,
                                  const ParallelCrossEntropyOptions& options) {
  check(logits, targets, group, options.ignore_index);
  const std::int64_t classes = logits.size(1);
  const OwnTargets own =
      own_targets(targets, classes * group.rank(), classes, options.ignore_index);
  at::Tensor losses = RowLosses::apply(logits, own, group.ranks(), group.tensors());
  if (options.reduction == at::Reduction::None) return losses;
  if (options.reduction == at::Reduction::Sum) return losses.sum();
  return losses.sum() / own.counts.sum().to(losses.scalar_type());
}

}  // namespace ddprun
