#include "worker/training/data_parallel/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ddprun/data_parallel.h>
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

std::vector<NamedParameter> with_frozen(const std::vector<NamedTensor>& trained,
                                        const std::vector<NamedParameter>& frozen) {
  std::vector<NamedParameter> all;
  all.reserve(trained.size() + frozen.size());
  for (const auto& [name, tensor] : trained) all.push_back({name, tensor});
  all.insert(all.end(), frozen.begin(), frozen.end());
  return all;
}

}  // namespace

GradientReducer::GradientReducer(std::vector<NamedTensor> parameters, Collective& collective,
                                 Options options)
    : collective_(collective),
      options_(std::move(options)),
      collectives_(parameters, collective),
      buckets_(std::move(parameters), {options_.sparse, options_.delayed}, collectives_,
               mode_of(options_.mode, collective.world_size()), options_.first_limits_bytes),
      layout_(buckets_.plan()),
      queue_(buckets_.plan()),
      sums_(buckets_, collectives_),
      ready_(collectives_.devices()),
      compared_(with_frozen(buckets_.parameters(), options_.frozen)),
      hooks_(std::span(compared_).first(buckets_.sizes().size()),
             [this](std::size_t parameter) { on_gradient(parameter); }),
      origins_(std::span(compared_).first(buckets_.sizes().size())),
      weights_(compared_, collective, options_.alike),
      times_(buckets_.parameters().front().tensor.device(), collective) {
  const auto& parameters_here = buckets_.parameters();
  if (options_.graph != GraphMode::kDefault)
    used_.emplace(parameters_here.size(), collectives_.devices().front(), collectives_.at(0));
  readiness_ = make_readiness(options_.graph, hooks_.nodes());
}

// The order is known once a pass was armed and has run. Passes under NoSync are not armed: after
// them no rank knows an order.
void GradientReducer::begin_pass() {
  check_finished();
  if (hooks_.renew()) readiness_->follow(hooks_.nodes());
  collectives_.check();  // on CUDA the sums may have failed after backward()
  if (pass_.begin() == Pass::BeginResult::kAfterSums) count_step(own_worker_page());
  if (layout_.waits_for_rebuild()) rebuild();
  times_.begin_pass();
}

void GradientReducer::check_silent() {
  if (alone()) return;
  const std::string changed = weights_.changed_silently(origins_.any_silent());
  if (changed.empty()) return;
  throw std::runtime_error(fmt::format(
      "forward() on rank {}: parameter '{}' was stepped after a backward() under NoSync, twice: "
      "its gradient was this rank's own, so the ranks have parted. End the NoSync before the last "
      "forward() and backward() of a step, and step by parallel.step(optimizer). Ranks that shall "
      "train alone call net->forward()",
      collective_.rank(), changed));
}

void GradientReducer::arm(std::span<const at::Tensor> outputs) {
  queue_.rearm();
  readiness_->begin(outputs);
  sums_.begin(wholly_unused_buckets());
  layout_.begin_pass();
  if (!alone()) origins_.begin(true);
  pass_.arm();
  weights_.count_forward();
  times_.mark(PassMoment::kBackwardBegins);
}

// Sums what the other ranks sum in the pass that this rank has no batch for.
void GradientReducer::shadow_pass() {
  const at::NoGradGuard no_grad;
  if (options_.graph == GraphMode::kStatic && readiness_->waits_for_end()) {
    throw std::runtime_error(
        "Join: with static_graph each rank needs a batch of its own first: it counts gradients "
        "there");
  }
  if (options_.skip_unused_buckets && pass_.summed() == 0) {
    throw std::runtime_error(
        "Join: with skip_all_reduce_unused_params each rank needs a batch of its own first: it "
        "learns there what is left out");
  }
  pass_.shadow();
  guard([this] {
    queue_.rearm();
    sums_.begin_again();
    // With a static graph the use that the first pass has summed holds for all.
    if (used_ && readiness_->use_changes()) used_->clear();
    for (const auto& [name, tensor] : buckets_.parameters()) tensor.mutable_grad().reset();
    for (std::size_t i = 0; i < buckets_.sizes().size(); ++i) mark_ready(i);
    launch_ready_buckets();
    if (readiness_->asks_for_use()) used_->launch_sum();
  });
  finish();
  // PyTorch's _push_all_rebuilt_params does so: should this be rank 0, its order counts.
  if (!readiness_->use_changes()) layout_.all_ready(buckets_.sizes().size());
}

// Threads of several devices take turns.
std::unique_lock<std::mutex> GradientReducer::turn() {
  return collectives_.count() > 1 ? std::unique_lock(hooks_mutex_) : std::unique_lock<std::mutex>();
}

void GradientReducer::on_gradient(std::size_t parameter) {
  const auto mine = turn();
  // Also under NoSync: the next pass sums what this one adds.
  if (used_ && buckets_.parameters()[parameter].tensor.grad().defined()) used_->mark(parameter);
  const Pass::Gradient gradient = pass_.gradient();
  if (gradient == Pass::Gradient::kTakesPart) return guard([&] { take_gradient(parameter); });
  origins_.add_own(parameter);
  if (gradient == Pass::Gradient::kOwnAfterSums) log::warning(second_backward(name()));
}

void GradientReducer::take_gradient(std::size_t parameter) {
  // backward(create_graph=true) turns gradients on: autograd must not record our copies.
  const at::NoGradGuard no_grad;
  layout_.hook_ran(parameter);
  const Readiness::Ready ready = readiness_->on_hook(parameter);
  if (!ready) throw std::runtime_error(graph_has_changed(name(), parameter));
  if (ready->empty()) return;
  for (const std::size_t each : *ready) mark_ready(each);
  // The buckets of later passes follow the order of the hooks. If each pass may have another one,
  // the first buckets stay.
  const bool learns = !layout_.rebuilt() && !readiness_->use_changes();
  if (learns && ready->back() == parameter) layout_.became_ready(parameter);
  launch_ready_buckets();
  finish_after_backward();
}

void GradientReducer::mark_ready(std::size_t parameter) {
  if (queue_.gradient_ready(parameter) == BucketQueue::Mark::kAgain)
    throw std::runtime_error(second_gradient(name(), parameter));
  // A gradient that nobody uses stays as it is, if its bucket does not travel.
  const std::size_t bucket = queue_.bucket_of(parameter);
  if (sums_.skipped(bucket)) return;
  buckets_.fill(parameter, sums_.divisor());
  ready_.filled(bucket, buckets_.device(bucket));
}

// The weights are told before the last sum, which all ranks wait for anyway. Many sums are told
// early. On several hosts they travel while backward() runs. Their sum has the name of the one
// behind it. Ranks that miss each other there mostly do so on its account.
void GradientReducer::launch_ready_buckets() {
  static const std::array<OperationName, 2> names{"bucket 0 (weights)", "bucket 1 (weights)"};
  const std::size_t behind = std::min(names.size(), plan().size()) - 1;
  for (auto bucket = queue_.next_to_launch(); bucket != BucketQueue::kNone;
       bucket = queue_.next_to_launch()) {
    times_.mark_first(PassMoment::kSumsBegin);
    if (bucket == behind) weights_.tell(names[behind]);
    ready_.hold(bucket, buckets_.device(bucket));
    sums_.launch(bucket);
  }
  // Sums that all ranks have launched by now are added here, in the middle of backward(). The rest
  // is added when it ends.
  collectives_.progress();
}

void GradientReducer::finish_after_backward() {
  if (!queue_.all_launched()) return;
  if (readiness_->asks_for_use()) used_->launch_sum();
  // The engine runs the callback at the end of this backward(), before it returns to the program.
  autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
}

// Tells by bucket whether this pass uses none of its parameters. Only where the program asks for
// it.
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
  if (sums_.has_hook() || pass_.armed() > 0) {
    throw std::runtime_error(
        "register_comm_hook or register_builtin_comm_hook can only be called once. comm_hook() "
        "must come before the first forward()");
  }
  if (std::ranges::find(options_.sparse, true) != options_.sparse.end()) {
    throw std::invalid_argument("comm_hook: parameters with sparse gradients cannot have one");
  }
  buckets_.use_buckets(options_.mode, collectives_);
  sums_.set_hook(std::move(hook));
}

void GradientReducer::set_step(ParameterStep step) {
  if (step_ || pass_.armed() > 0) {
    throw std::runtime_error(
        "step_in_backward() can only be called once, and must come before the first forward()");
  }
  step_ = std::move(step);
}

void GradientReducer::on_backward() {
  const auto mine = turn();
  if (!readiness_->waits_for_end() || !pass_.backward_began()) return;
  autograd::Engine::get_default_engine().queue_callback([this] { guard([this] { take_all(); }); });
}

void GradientReducer::take_all() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buckets_.sizes().size(); ++i) mark_ready(i);
  launch_ready_buckets();
  finish_after_backward();
}

void GradientReducer::finish() {
  guard([this] { wait_for_sums(); });
  pass_.all_summed();
  if (step_) count_step_made();
}

// Gives each bucket back as soon as its own sum is complete: later sums may still be under way.
// If parameters may be unused, the last sum of the pass says which of them were. All ranks wait for
// it at the same place: the collective's operations have one order.
void GradientReducer::wait_for_sums() {
  const at::NoGradGuard no_grad;
  times_.mark(PassMoment::kBackwardEnds);
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
  times_.mark(PassMoment::kSumsEnd);
  times_.end_pass();
}

void GradientReducer::compare_weights() {
  if (!weights_.compare(pass_.armed())) throw std::runtime_error(*weights_.how_parted());
}

// A parameter that no rank has used keeps its gradient as it was.
void GradientReducer::give_back(std::size_t bucket) {
  for (const std::size_t parameter : plan()[bucket]) {
    if (sums_.skipped(bucket) || (used_ && !used_->anywhere(parameter))) continue;
    buckets_.give_back(parameter);
    if (step_)
      step(parameter);
    else if (!alone())
      origins_.set_average(parameter);
  }
  pass_.bucket_done();
}

// Later sums may still be under way meanwhile.
void GradientReducer::step(std::size_t parameter) {
  at::Tensor tensor = buckets_.parameters()[parameter].tensor;
  step_(tensor);
  tensor.mutable_grad().reset();
  pass_.parameter_stepped();
}

void GradientReducer::count_step_made(std::span<const std::size_t> stepped) {
  origins_.step(stepped);
  weights_.count_step();
  pass_.step_made();
}

void GradientReducer::reset() {
  if (weights_.how_parted()) throw std::runtime_error("reset: " + *weights_.how_parted());
  collectives_.reset();
  check_same_progress();
  for (const auto& [name, tensor] : buckets_.parameters()) tensor.mutable_grad().reset();
  if (used_) used_->drop_sum();
  layout_.forget();
  origins_.clear();
  weights_.drop();
  pass_.reset();
}

void GradientReducer::check_same_progress() {
  const Progress mine{.passes_summed = pass_.summed(),
                      .steps = pass_.steps(),
                      .rebuilt = layout_.rebuilt() ? 1U : 0U,
                      .parameters_stepped = pass_.parameters_stepped()};
  const auto told = collective_.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  std::vector<Progress> ranks(told.size(), Progress{});
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (told[rank].size() == sizeof mine) std::memcpy(&ranks[rank], told[rank].data(), sizeof mine);
  }
  const auto parted = parted_in_reset(ranks, collective_.rank());
  if (!parted) return;
  // No step may follow, whatever happens to this error.
  pass_.ranks_parted();
  throw std::runtime_error(*parted);
}

void GradientReducer::rebuild() {
  const auto plan_them =
      options_.limits_from_the_last ? plan_ready_buckets_backwards : plan_ready_buckets;
  const auto order = layout_.whole_order(buckets_.sizes().size());
  BucketPlan plan = plan_of_root(plan_them(buckets_.sizes(), order, options_.bucket_limits_bytes));
  if (plan.empty()) throw CollectiveError("rank 0 sent buckets that do not fit this rank's model");
  adopt(std::move(plan));
}

// All ranks take rank 0's order. On another rank gradients may become ready in another order, and
// unequal buckets must not be added. Returns an empty plan if rank 0's does not fit.
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
  layout_.set_rebuilt();
}

bool GradientReducer::restore(const BucketPlan& plan) {
  if (pass_.armed() > 0)
    throw std::runtime_error("restore_buckets() must come before the first forward()");
  BucketPlan root = plan_of_root(plan);
  if (root.empty() || readiness_->use_changes() || !may_share_buckets(buckets_.sizes(), root)) {
    return false;
  }
  adopt(std::move(root));
  return true;
}

void GradientReducer::check_finished() {
  const auto why = why_unfinished();
  if (!why) return;
  pass_.tell();
  throw std::runtime_error(*why);
}

void GradientReducer::check_averaged() {
  check_finished();
  if (alone()) return;
  if (const auto why = origins_.why_own())
    throw std::runtime_error(fmt::format("step() on rank {}: {}", collective_.rank(), *why));
}

std::optional<std::string> GradientReducer::why_unfinished() const {
  if (weights_.how_parted()) return weights_.how_parted();
  if (!pass_.unfinished()) return std::nullopt;
  if (pass_.state() == Pass::State::kFailed)
    return ended_with_error(name(), plan(), pass_.buckets_done());
  return ended_early(name(), queue_.missing());
}

PassName GradientReducer::name() const {
  return {.number = pass_.armed(), .rank = collective_.rank(), .parameters = buckets_.parameters()};
}

void GradientReducer::write(LogRecord& record) {
  layout_.write(record, plan(), buckets_.sizes());
  std::size_t unused_bytes = 0;
  for (const std::size_t parameter : readiness_->unused())
    unused_bytes += buckets_.sizes()[parameter].bytes;
  record.texts["comm_hook"] = sums_.has_hook() ? "custom" : "";
  record.numbers["can_set_static_graph"] = readiness_->unchanged() ? 1 : 0;
  record.numbers["iteration"] = static_cast<std::int64_t>(pass_.armed());
  record.numbers["num_buckets_reduced"] = static_cast<std::int64_t>(sums_.launched());
  record.numbers["unused_parameter_size"] = static_cast<std::int64_t>(unused_bytes);
  const auto why = why_unfinished();
  record.numbers["has_error"] = why ? 1 : 0;
  record.texts["error"] = why.value_or("");
  times_.write(record);
}

}  // namespace ddprun::worker
