#include "worker/reducer/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "proto/worker_page.h"

namespace ddprun::worker {
namespace {

namespace autograd = torch::autograd;

// One rank's dense gradients are the sums already. Only a communication hook looks into its
// buckets.
GradientMode mode_of(GradientMode asked, int ranks) {
  return ranks > 1 ? asked : GradientMode::kStay;
}

std::vector<NamedParameter> with_frozen(std::vector<NamedParameter> trained,
                                        const std::vector<NamedParameter>& frozen) {
  trained.insert(trained.end(), frozen.begin(), frozen.end());
  return trained;
}

}  // namespace

GradientReducer::GradientReducer(std::vector<NamedTensor> parameters, Collective& collective,
                                 Options options)
    : collective_(collective),
      options_(std::move(options)),
      buckets_(std::move(parameters), options_.sparse, options_.delayed, collective,
               mode_of(options_.mode, collective.world_size()), options_.first_limits_bytes),
      queue_(buckets_.plan()),
      sums_(buckets_, collective),
      named_(named(buckets_)),
      hooks_(named_, [this](std::size_t parameter) { on_gradient(parameter); }),
      origins_(named_),
      compared_(with_frozen(named_, options_.frozen)),
      weights_(compared_, collective, options_.alike),
      first_plan_(buckets_.plan()),
      alone_(collective.world_size() == 1),
      divisor_(collective.world_size()) {
  const auto& parameters_here = buckets_.parameters();
  if (options_.graph != GraphMode::kDefault)
    used_.emplace(parameters_here.size(), parameters_here.front().tensor.device(), collective_);
  readiness_ = make_readiness(options_.graph, hooks_.nodes());
}

// The order is known once a pass was armed and has run. Passes under NoSync are not armed: after
// them rebuild_order_ is still empty, on all ranks.
void GradientReducer::begin_pass() {
  check_finished();
  if (hooks_.renew()) readiness_->follow(hooks_.nodes());
  collective_.check();  // on CUDA the sums may have failed after backward()
  // Whoever begins anew has used the sums: his step is done.
  if (std::exchange(summed_, false)) {
    if (!stepped_) ++steps_;
    count_step(own_worker_page());
  }
  stepped_ = false;
  if (!rebuilt_ && !rebuild_order_.empty()) rebuild();
  times_.mark(PassTimes::Moment::kForwardBegins);
}

// Weights may change once for another reason: a program gives passes up, and loads a checkpoint.
void GradientReducer::check_silent() {
  if (collective_.world_size() == 1) return;
  std::vector<double> now = weights_.read();
  const std::string name =
      origins_.any_silent() ? weights_.changed(before_silent_, now) : std::string();
  before_silent_ = std::move(now);
  silent_steps_ = name.empty() ? 0 : silent_steps_ + 1;
  if (silent_steps_ < 2) return;
  throw std::runtime_error(fmt::format(
      "forward() on rank {}: parameter '{}' was stepped after a backward() under NoSync, twice: "
      "its gradient was this rank's own, so the ranks have parted. End the NoSync before the last "
      "forward() and backward() of a step, and step by parallel.step(optimizer). Ranks that shall "
      "train alone call net->forward()",
      collective_.rank(), name));
}

void GradientReducer::arm(std::span<const at::Tensor> outputs) {
  queue_.rearm();
  readiness_->begin(outputs);
  sums_.begin(wholly_unused_buckets());
  gradient_order_.clear();
  given_back_ = 0;
  if (!rebuilt_) rebuild_order_.clear();
  if (!alone_) origins_.begin(true);
  armed_ = true;
  told_ = end_queued_ = false;
  silent_steps_ = 0;
  ++pass_;
  ++done_.forwards;
  times_.mark(PassTimes::Moment::kBackwardBegins);
}

void GradientReducer::on_gradient(std::size_t parameter) {
  // Also under NoSync: the next pass sums what this one adds.
  if (used_ && buckets_.parameters()[parameter].tensor.grad().defined()) used_->mark(parameter);
  if (!armed_) {
    origins_.add_own(parameter);
    return warn_of_second_backward();
  }
  try {
    take_gradient(parameter);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void GradientReducer::warn_of_second_backward() {
  if (!summed_ || std::exchange(warned_again_, true)) return;
  log::warning(fmt::format(
      "backward() ran again after pass {} was summed, without a forward() of DataParallel before "
      "it. Its gradients are added on this rank only: rank {} parts from the others.",
      pass_, collective_.rank()));
}

void GradientReducer::take_gradient(std::size_t parameter) {
  // backward(create_graph=true) turns gradients on: autograd must not record our copies.
  const at::NoGradGuard no_grad;
  // From here to finish() the pass is unfinished. check_finished() finds it so if a gradient is
  // missing.
  unfinished_ = true;
  gradient_order_.push_back(parameter);
  ready_.clear();
  if (!readiness_->on_hook(parameter, ready_)) {
    throw std::runtime_error(fmt::format(
        "Your training graph has changed in this iteration, which static_graph does not allow: "
        "parameter {} got more gradients in pass {} on rank {} than in the first pass. Leave "
        "static_graph out, or make every pass alike.",
        describe({parameter}), pass_, collective_.rank()));
  }
  if (ready_.empty()) return;
  for (const std::size_t ready : ready_) mark_ready(ready);
  // The buckets of later passes follow the order of the hooks. Where each pass may have another
  // one, the first buckets stay.
  const bool learns = !rebuilt_ && !readiness_->use_changes();
  if (learns && ready_.back() == parameter) rebuild_order_.push_back(parameter);
  launch_ready_buckets();
  finish_after_backward();
}

void GradientReducer::mark_ready(std::size_t parameter) {
  if (queue_.gradient_ready(parameter) == BucketQueue::Mark::kAgain) {
    throw std::runtime_error(fmt::format(
        "Expected to mark a variable ready only once. Parameter {} got a second gradient in pass "
        "{} on rank {}. Causes: 1) it is used outside of forward(); 2) it is used in several "
        "reentrant backward passes, as with activation checkpointing: static_graph allows that; 3) "
        "forward() ran twice before backward() over the same graph.",
        describe({parameter}), pass_, collective_.rank()));
  }
  // What nobody uses stays as it is, where it does not travel. A communication hook divides itself.
  if (sums_.skipped(queue_.bucket_of(parameter))) return;
  buckets_.fill(parameter, sums_.has_hook() ? 1 : divisor_);
}

// The weights are told before the last sum, which all ranks wait for anyway; and early where there
// are many: on several hosts they travel while backward() runs. Their sum has the name of the one
// behind it: ranks that miss each other there mostly do so on its account.
void GradientReducer::launch_ready_buckets() {
  static const std::array<OperationName, 2> names{"bucket 0 (weights)", "bucket 1 (weights)"};
  const std::size_t behind = std::min(names.size(), plan().size()) - 1;
  for (auto bucket = queue_.next_to_launch(); bucket != BucketQueue::kNone;
       bucket = queue_.next_to_launch()) {
    times_.mark_first(PassTimes::Moment::kSumsBegin);
    if (bucket == behind) weights_.tell(done_, names[behind]);
    sums_.launch(bucket);
  }
  // Sums that all ranks have launched by now are added here, in the middle of backward(). The rest
  // is added when it ends.
  collective_.progress();
}

void GradientReducer::finish_after_backward() {
  if (!queue_.all_launched()) return;
  if (readiness_->asks_for_use()) used_->launch_sum();
  // The engine runs the callback at the end of this backward(), before it returns to the program.
  autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
}

// By bucket: whether this pass uses none of its parameters. Only where the program asks for it.
std::vector<bool> GradientReducer::wholly_unused_buckets() const {
  std::vector<bool> unused;
  if (!options_.skip_unused_buckets) return unused;
  for (const auto& bucket : plan()) {
    unused.push_back(std::ranges::all_of(bucket, [this](std::size_t parameter) {
      return std::ranges::binary_search(readiness_->unused(), parameter);
    }));
  }
  return unused;
}

void GradientReducer::set_comm_hook(CommHook hook) {
  if (sums_.has_hook() || pass_ > 0) {
    throw std::runtime_error(
        "register_comm_hook or register_builtin_comm_hook can only be called once. comm_hook() "
        "must "
        "come before the first forward()");
  }
  if (std::ranges::find(options_.sparse, true) != options_.sparse.end()) {
    throw std::invalid_argument("comm_hook: parameters with sparse gradients cannot have one");
  }
  buckets_.use_buckets(options_.mode, collective_);
  sums_.set_hook(std::move(hook));
}

void GradientReducer::set_step(ParameterStep step) {
  if (step_ || pass_ > 0) {
    throw std::runtime_error(
        "step_in_backward() can only be called once, and must come before the first forward()");
  }
  step_ = std::move(step);
}

void GradientReducer::on_backward() {
  if (!armed_ || !readiness_->waits_for_end() || std::exchange(end_queued_, true)) return;
  unfinished_ = true;
  autograd::Engine::get_default_engine().queue_callback([this] { take_all(); });
}

void GradientReducer::take_all() {
  const at::NoGradGuard no_grad;
  failed_ = true;  // until all is well
  for (std::size_t i = 0; i < buckets_.sizes().size(); ++i) mark_ready(i);
  launch_ready_buckets();
  finish_after_backward();
}

// Gives each bucket back as soon as its own sum is complete: later sums may still be under way.
// Where parameters may be unused, the last sum of the pass says which of them were. All ranks wait
// for it at the same place: the collective's verbs have one order.
void GradientReducer::finish() {
  const at::NoGradGuard no_grad;
  failed_ = true;  // until all is well
  times_.mark(PassTimes::Moment::kBackwardEnds);
  const std::size_t count = plan().size();
  for (std::size_t bucket = 0; bucket < count; ++bucket) {
    sums_.complete(bucket);
    if (bucket + 1 == count) compare_weights();
    if (!used_) give_back(bucket);
  }
  if (used_) {
    used_->finish();
    for (std::size_t bucket = 0; bucket < count; ++bucket) give_back(bucket);
    if (readiness_->use_changes()) used_->clear();
  }
  readiness_->end();
  times_.mark(PassTimes::Moment::kSumsEnd);
  times_.count_pass();
  failed_ = false;
  armed_ = false;
  unfinished_ = false;
  summed_ = true;
  ++passes_summed_;
  stepped_parameters_ = 0;
  if (step_) count_step_made();
}

void GradientReducer::compare_weights() {
  parted_ = weights_.compare(done_, pass_);
  forget_steps();
  if (parted_) throw std::runtime_error(*parted_);
}

void GradientReducer::forget_steps() {
  done_.steps = done_.forwards = 0;
  done_.settings.clear();
}

// What no rank has used keeps its gradient as it was.
void GradientReducer::give_back(std::size_t bucket) {
  for (const std::size_t parameter : plan()[bucket]) {
    if (sums_.skipped(bucket) || (used_ && !used_->anywhere(parameter))) continue;
    buckets_.give_back(parameter);
    if (step_)
      step(parameter);
    else if (!alone_)
      origins_.set_average(parameter);
  }
  ++given_back_;
}

// Later sums may still be under way meanwhile.
void GradientReducer::step(std::size_t parameter) {
  at::Tensor tensor = buckets_.parameters()[parameter].tensor;
  step_(tensor);
  tensor.mutable_grad().reset();
  ++stepped_parameters_;
}

void GradientReducer::start_comparing() {
  weights_.start();
  forget_steps();
}

void GradientReducer::count_step_made(std::span<const std::size_t> stepped) {
  origins_.step(stepped);
  ++done_.steps;
  if (summed_ && !std::exchange(stepped_, true)) ++steps_;
}

void GradientReducer::note_settings(const torch::optim::Optimizer& optimizer) {
  if (weights_.compares()) done_.settings.add(optimizer);
}

void GradientReducer::reset() {
  if (parted_) throw std::runtime_error("reset: " + *parted_);
  collective_.reset();
  check_same_progress();
  for (const auto& [name, tensor] : buckets_.parameters()) tensor.mutable_grad().reset();
  if (used_) used_->drop_sum();
  if (!rebuilt_) rebuild_order_.clear();
  origins_.clear();
  weights_.drop();
  forget_steps();
  armed_ = unfinished_ = failed_ = told_ = summed_ = stepped_ = false;
}

void GradientReducer::check_same_progress() {
  const std::array<std::uint64_t, 4> mine{passes_summed_, steps_, rebuilt_ ? 1U : 0U,
                                          stepped_parameters_};
  const auto all = collective_.all_gather(std::as_bytes(std::span(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::array<std::uint64_t, 4> theirs{};
    if (all[rank].size() == sizeof theirs)
      std::memcpy(theirs.data(), all[rank].data(), sizeof theirs);
    if (theirs == mine && stepped_parameters_ == 0) continue;
    // Whatever happens to this error, no step may follow.
    unfinished_ = failed_ = true;
    if (mine[3] != 0 || theirs[3] != 0) {
      throw std::runtime_error(fmt::format(
          "reset: step_in_backward() has stepped {} parameters of the pass on rank {}, and {} on "
          "rank {}: the pass cannot be given up any more, so the job must start anew from a "
          "checkpoint",
          mine[3], collective_.rank(), theirs[3], rank));
    }
    throw std::runtime_error(fmt::format(
        "reset: rank {} has summed {} passes and made {} steps, rank {} has summed {} and "
        "made {}: the weights have parted, so the job must start anew from a checkpoint",
        collective_.rank(), passes_summed_, steps_, rank, theirs[0], theirs[1]));
  }
}

void GradientReducer::rebuild() {
  // A static graph may leave parameters out; they come last.
  std::vector<bool> ordered(buckets_.sizes().size(), false);
  for (const std::size_t parameter : rebuild_order_) ordered[parameter] = true;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    if (!ordered[i]) rebuild_order_.push_back(i);
  }
  const auto plan_them =
      options_.limits_from_the_last ? plan_ready_buckets_backwards : plan_ready_buckets;
  BucketPlan plan =
      plan_of_root(plan_them(buckets_.sizes(), rebuild_order_, options_.bucket_limits_bytes));
  if (plan.empty()) throw CollectiveError("rank 0 sent buckets that do not fit this rank's model");
  adopt(std::move(plan));
}

// All ranks take rank 0's order: on another rank gradients may become ready in another order, and
// unequal buckets must not be added. Empty where it does not fit.
BucketPlan GradientReducer::plan_of_root(const BucketPlan& mine) const {
  const std::vector<std::int32_t> numbers = to_numbers(mine);
  const auto blob = collective_.from_root(std::as_bytes(std::span(numbers)), 0);
  std::vector<std::int32_t> root_numbers(blob.size() / sizeof(std::int32_t));
  std::memcpy(root_numbers.data(), blob.data(), root_numbers.size() * sizeof(std::int32_t));
  return from_numbers(root_numbers, buckets_.sizes().size());
}

void GradientReducer::adopt(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  std::vector<bool> averages(buckets_.sizes().size());
  for (std::size_t i = 0; i < averages.size(); ++i) averages[i] = origins_.is_average(i);
  buckets_.carve(std::move(plan));
  for (std::size_t i = 0; i < averages.size(); ++i)
    if (averages[i]) origins_.follow(i);
  queue_ = BucketQueue(buckets_.plan());
  rebuild_order_.clear();
  rebuilt_ = true;
}

bool GradientReducer::restore(const BucketPlan& plan) {
  if (pass_ > 0) throw std::runtime_error("restore_buckets() must come before the first forward()");
  BucketPlan root = plan_of_root(plan);
  if (root.empty() || readiness_->use_changes() || !may_share_buckets(buckets_.sizes(), root)) {
    return false;
  }
  adopt(std::move(root));
  return true;
}

void GradientReducer::check_finished() const {
  const auto why = why_unfinished();
  if (!why) return;
  told_ = true;
  throw std::runtime_error(*why);
}

void GradientReducer::check_averaged() const {
  check_finished();
  if (alone_) return;
  if (const auto why = origins_.why_own())
    throw std::runtime_error(fmt::format("step() on rank {}: {}", collective_.rank(), *why));
}

std::optional<std::string> GradientReducer::why_unfinished() const {
  if (parted_) return parted_;
  if (!unfinished_) return std::nullopt;
  const std::string begin = fmt::format(
      "Expected to have finished reduction in the prior iteration before starting a new one. On "
      "rank {}, backward() of pass {} ",
      collective_.rank(), pass_);
  if (failed_) {
    return begin + "ended with an error: " + not_reduced() +
           "call reset() on all ranks to give the pass up, or start the job anew from a "
           "checkpoint.";
  }
  const std::vector<std::size_t> missing = queue_.missing();
  if (missing.empty()) return begin + "ended before its sums were complete.";
  return begin + fmt::format(
                     "gave no gradient to {} of {} parameters: {}. Every parameter that needs a "
                     "gradient must take part in the loss: use all outputs of forward(), set "
                     "find_unused_parameters, or freeze what is not trained with "
                     "requires_grad_(false). If backward() threw, call reset() on all ranks.",
                     missing.size(), buckets_.sizes().size(), describe(missing));
}

// In bucket order each one is given back, so it is the first of those that are not.
std::string GradientReducer::not_reduced() const {
  if (given_back_ >= plan().size()) return {};
  return fmt::format("{} of {} buckets were not reduced, the first of them with parameters {}; ",
                     plan().size() - given_back_, plan().size(), describe(plan()[given_back_]));
}

}  // namespace ddprun::worker
