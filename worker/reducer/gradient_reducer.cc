#include "worker/reducer/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "proto/worker_page.h"

namespace ddprun::worker {
namespace {

namespace autograd = torch::autograd;

// A message names so many parameters, then says how many more there are. Models have thousands.
constexpr std::size_t kNamedInMessageMax = 10;

}  // namespace

GradientReducer::GradientReducer(std::vector<NamedTensor> parameters, Collective& collective,
                                 Options options)
    : collective_(collective),
      buckets_(std::move(parameters), collective, options.mode),
      queue_(buckets_.plan()),
      bucket_limits_bytes_(std::move(options.bucket_limits_bytes)) {
  for (std::size_t i = 0; i < buckets_.parameters().size(); ++i) {
    // The node that adds to `.grad`. A post hook on it runs when `.grad` has its final value of
    // this backward(); a hook on the tensor would run before.
    std::shared_ptr<autograd::Node> node =
        autograd::impl::grad_accumulator(buckets_.parameters()[i].tensor);
    auto hook = std::make_unique<autograd::utils::LambdaPostHook>(
        [this, i](const autograd::variable_list& outputs,
                  const autograd::variable_list& /*inputs*/) {
          on_gradient(i);
          return outputs;
        });
    const std::uintptr_t key = node->add_post_hook(std::move(hook));
    hooks_.push_back({std::move(node), key});
  }
}

// A graph may hold a node longer than this object lives. A hook left there would use freed memory.
GradientReducer::~GradientReducer() {
  for (const Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
}

// The order is known once a pass was armed and has run. Passes under NoSync are not armed: after
// them ready_order_ is still empty, on all ranks.
void GradientReducer::begin_pass() {
  check_finished();
  // Whoever begins anew has used the sums: his step is done.
  if (std::exchange(summed_, false)) count_step(own_worker_page());
  if (!rebuilt_ && !ready_order_.empty()) rebuild();
}

void GradientReducer::arm() {
  queue_.rearm();
  tickets_.clear();
  if (!rebuilt_) ready_order_.clear();
  armed_ = true;
  told_ = false;
  ++pass_;
}

void GradientReducer::on_gradient(std::size_t parameter) {
  if (!armed_) return;
  try {
    take_gradient(parameter);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void GradientReducer::take_gradient(std::size_t parameter) {
  // backward(create_graph=true) turns gradients on: autograd must not record our copies.
  const at::NoGradGuard no_grad;
  // From here to finish() the pass is unfinished. check_finished() finds it so if a gradient is
  // missing.
  unfinished_ = true;
  if (queue_.gradient_ready(parameter) == BucketQueue::Mark::kAgain) {
    throw std::runtime_error(fmt::format(
        "Expected to mark a variable ready only once. Parameter {} got a second gradient in pass "
        "{} on rank {}. Causes: 1) it is used outside of forward(); 2) it is used in several "
        "reentrant backward passes, as with activation checkpointing; 3) forward() ran twice "
        "before backward() over the same graph.",
        describe({parameter}), pass_, collective_.rank()));
  }
  if (!rebuilt_) ready_order_.push_back(parameter);
  buckets_.fill(parameter, collective_.world_size());
  launch_ready_buckets();
}

void GradientReducer::launch_ready_buckets() {
  for (auto bucket = queue_.next_to_launch(); bucket != BucketQueue::kNone;
       bucket = queue_.next_to_launch()) {
    tickets_.push_back(collective_.launch_sum(buckets_.flat(bucket)));
  }
  // Sums that all ranks have launched by now are added here, in the middle of backward(). The rest
  // is added when it ends.
  collective_.progress();
  if (queue_.all_launched()) {
    // The engine runs the callback at the end of this backward(), before it returns to the program.
    autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
  }
}

// Gives each bucket back as soon as its own sum is complete: later sums may still be under way.
void GradientReducer::finish() {
  const at::NoGradGuard no_grad;
  failed_ = true;  // until all is well
  for (std::size_t bucket = 0; bucket < tickets_.size(); ++bucket) {
    collective_.wait(tickets_[bucket]);
    buckets_.give_back(bucket);
  }
  failed_ = false;
  armed_ = false;
  unfinished_ = false;
  summed_ = true;
}

void GradientReducer::rebuild() {
  const BucketPlan mine = plan_ready_buckets(buckets_.sizes(), ready_order_, bucket_limits_bytes_);
  const std::vector<std::int32_t> numbers = to_numbers(mine);
  // All ranks take rank 0's order: on another rank gradients may become ready in another order, and
  // unequal buckets must not be added.
  const auto blob = collective_.from_root(std::as_bytes(std::span(numbers)), 0);
  std::vector<std::int32_t> root_numbers(blob.size() / sizeof(std::int32_t));
  std::memcpy(root_numbers.data(), blob.data(), root_numbers.size() * sizeof(std::int32_t));
  BucketPlan plan = from_numbers(root_numbers, buckets_.sizes().size());
  if (plan.empty()) throw CollectiveError("rank 0 sent buckets that do not fit this rank's model");
  const at::NoGradGuard no_grad;
  buckets_.carve(std::move(plan));
  queue_ = BucketQueue(buckets_.plan());
  ready_order_.clear();
  rebuilt_ = true;
}

void GradientReducer::check_finished() const {
  const auto why = why_unfinished();
  if (!why) return;
  told_ = true;
  throw std::runtime_error(*why);
}

std::optional<std::string> GradientReducer::why_unfinished() const {
  if (!unfinished_) return std::nullopt;
  const std::string begin = fmt::format(
      "Expected to have finished reduction in the prior iteration before starting a new one. On "
      "rank {}, backward() of pass {} ",
      collective_.rank(), pass_);
  if (failed_) return begin + "ended with an error: the job must start anew from a checkpoint.";
  const std::vector<std::size_t> missing = queue_.missing();
  if (missing.empty()) return begin + "ended before its sums were complete.";
  return begin + fmt::format(
                     "gave no gradient to {} of {} parameters: {}. Every parameter that needs a "
                     "gradient must take part in the loss: use all outputs of forward(), or freeze "
                     "what is not trained with requires_grad_(false).",
                     missing.size(), buckets_.sizes().size(), describe(missing));
}

std::string GradientReducer::describe(const std::vector<std::size_t>& parameters) const {
  std::string text;
  const std::size_t named = std::min(parameters.size(), kNamedInMessageMax);
  for (std::size_t i = 0; i < named; ++i) {
    text += fmt::format("{}{} ('{}')", i == 0 ? "" : ", ", parameters[i],
                        buckets_.parameters()[parameters[i]].name);
  }
  if (named < parameters.size()) text += fmt::format(" and {} more", parameters.size() - named);
  return text;
}

}  // namespace ddprun::worker
