#include <c10/util/Exception.h>
#include <ddprun/captured_step.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/worker_page.h"
#include "worker/training/graphs/step_runner.h"

namespace ddprun {
namespace worker {

// DataParallel counts the step that is captured, and no replay.
at::Tensor StepRunner::run() {
  ranks_.check();
  if (!graph_) return step_();
  if (!failure_.empty()) throw CollectiveError(failure_);
  if (warm_ups_ > 0) return run_as_it_is();
  if (captured_)
    count_step(own_worker_page());
  else
    capture();
  counts_.before_replay();
  graph_->replay();
  counts_.replayed();
  return result_;
}

at::Tensor StepRunner::run_as_it_is() {
  const StepCounts::Use use(counts_, StepCounts::Mode::kRuns);
  at::Tensor result;
  graph_->run([&] { result = step_(); });
  --warm_ups_;
  return result;
}

// Either all ranks replay, or none does.
void StepRunner::capture() {
  agree(try_to_capture());
  captured_ = true;
}

// Returns why it could not be done, or nothing.
std::string StepRunner::try_to_capture() {
  try {
    const StepCounts::Use use(counts_, StepCounts::Mode::kIsCaptured);
    graph_->capture([this] {
      if (!ranks_.is_capturing())
        throw std::runtime_error("the current device is not the collective's GPU");
      result_ = step_();
    });
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "it throws something that is no std::exception";
  }
}

void StepRunner::agree(const std::string& why_not) {
  constexpr std::size_t kToldMax = 4096;
  const std::string_view told = std::string_view(why_not).substr(0, kToldMax);
  const auto all = ranks_.all_gather_bytes(std::as_bytes(std::span(told)));
  const auto first = std::ranges::find_if(all, [](const auto& said) { return !said.empty(); });
  if (first == all.end()) return;
  failure_ =
      fmt::format("captured_step: rank {} cannot capture its step: {}", first - all.begin(),
                  std::string_view(reinterpret_cast<const char*>(first->data()), first->size()));
  throw CollectiveError(failure_);
}

}  // namespace worker

CapturedStep::CapturedStep(std::shared_ptr<worker::StepRunner> runner)
    : runner_(std::move(runner)) {}

at::Tensor CapturedStep::operator()() { return runner_->run(); }
bool CapturedStep::is_captured() const { return runner_->is_captured(); }

CapturedStep captured_step(std::function<at::Tensor()> step, Collective& ranks,
                           CapturedStepOptions options) {
  // The second pass makes the buckets anew, which no graph can hold.
  constexpr int kWarmUpsMin = 2;
  if (options.warm_ups < kWarmUpsMin) {
    throw std::invalid_argument(fmt::format(
        "captured_step: warm_ups: {} given, expected {} or more", options.warm_ups, kWarmUpsMin));
  }
  return CapturedStep(std::make_shared<worker::StepRunner>(
      std::move(step), ranks, options.warm_ups, worker::make_step_graph(ranks.device())));
}

}  // namespace ddprun
