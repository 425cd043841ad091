#include "worker/training/pipeline/pipeline_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <ddprun/sharded_parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/training/data_parallel/malloc_settings.h"
#include "worker/training/pipeline/pipeline_terms.h"

namespace ddprun::worker {
namespace {

using Kind = PipelineAction::Kind;

PipelineOrder order_of(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::kGPipe ? PipelineOrder::kGPipe
                                              : PipelineOrder::kOneForwardOneBackward;
}

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

// Modules list a parameter that has two names twice.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  std::vector<at::Tensor> once;
  for (const at::Tensor& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  return once;
}

}  // namespace

PipelineRun::PipelineRun(PipelineStage stage, Collective& ranks, PipelineLoss loss,
                         const PipelineOptions& options)
    : stage_(std::move(stage)),
      ranks_(ranks),
      tensors_(ranks),
      loss_(std::move(loss)),
      options_(options),
      training_(make_links()),
      forwards_(make_links()) {
  stage_.parameters = each_once(stage_.parameters);
  meet();
  if (ranks_.device() == Device::kCpu) set_up_malloc();
}

// All ranks get the same answer.
void PipelineRun::meet() {
  const PipelineTerms mine{
      .micro_batches = options_.micro_batches,
      .order = order_of(options_.schedule),
      .mean_loss = options_.mean_loss,
      .has_loss = static_cast<bool>(loss_),
      .runs_ahead = stage_.parallel == nullptr || stage_.parallel->forwards_may_run_ahead()};
  const PipelineWords words = words_of(mine);
  const auto told = ranks_.all_gather_bytes(std::as_bytes(std::span(words)));
  std::vector<PipelineTerms> by_rank;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    PipelineWords theirs{};
    if (told[rank].size() == sizeof theirs)
      std::memcpy(theirs.data(), told[rank].data(), sizeof theirs);
    const auto terms = terms_of(theirs);
    if (!terms) throw CollectiveError(fmt::format("Pipeline: rank {} makes something else", rank));
    by_rank.push_back(*terms);
  }
  if (const auto why = why_unequal(by_rank)) throw std::invalid_argument(*why);
  has_loss_ = by_rank.back().has_loss;
}

PipelineRun::Links PipelineRun::make_links() {
  Links links;
  if (!is_first()) links.in.emplace(tensors_, ranks_, ranks_.rank() - 1);
  if (!is_last()) links.out.emplace(tensors_, ranks_, ranks_.rank() + 1);
  return links;
}

at::Tensor PipelineRun::forward_backward(const at::Tensor& inputs, const at::Tensor& targets) {
  if (!has_loss_)
    throw std::logic_error("Pipeline: forward_backward() needs a loss, and the last rank has none");
  const at::AutoGradMode gradients(true);
  Batch batch{training_, cut(inputs, is_first(), "inputs"), cut(targets, is_last(), "targets"),
              true};
  most_live_ = 0;
  run(order_of(options_.schedule), batch);
  divide_gradients();
  if (!is_last()) return {};
  const at::Tensor losses = at::stack(batch.results);
  return options_.mean_loss ? losses.mean() : losses.sum();
}

at::Tensor PipelineRun::forward(const at::Tensor& inputs) {
  const at::NoGradGuard no_gradients;
  Batch batch{forwards_, cut(inputs, is_first(), "inputs"), {}, false};
  run(PipelineOrder::kForwardOnly, batch);
  return is_last() ? at::cat(batch.results) : at::Tensor();
}

std::vector<at::Tensor> PipelineRun::cut(const at::Tensor& whole, bool needed,
                                         const char* what) const {
  if (!needed) return {};
  if (!whole.defined() || whole.dim() == 0)
    throw std::invalid_argument(
        fmt::format("Pipeline: {} {} given on rank {}, expected sizes (rows, ...)", what,
                    whole.defined() ? "without rows" : "that are undefined", ranks_.rank()));
  return whole.split(rows_of_micro_batch(whole.size(0), options_.micro_batches, what));
}

void PipelineRun::run(PipelineOrder order, Batch& batch) {
  batch.micro_batches.resize(static_cast<std::size_t>(options_.micro_batches));
  for (const PipelineAction& action :
       plan_pipeline(order, ranks_.rank(), ranks_.world_size(), options_.micro_batches))
    act(action, batch);
}

void PipelineRun::act(const PipelineAction& action, Batch& batch) {
  const int number = action.micro_batch;
  MicroBatch& micro = batch.micro_batches[static_cast<std::size_t>(number)];
  switch (action.kind) {
    case Kind::kReceiveInput:
      micro.input = batch.links.in->receive(number);
      return;
    case Kind::kForward:
      return forward_one(number, batch);
    case Kind::kSendOutput:
      batch.links.out->send(micro.output, number);
      if (!batch.trains) micro.output.reset();
      return;
    case Kind::kReceiveGradient:
      micro.gradient = batch.links.out->receive_gradient(number);
      return;
    case Kind::kBackward:
      return backward_one(number, batch);
    case Kind::kSendGradient:
      batch.links.in->send_gradient(std::exchange(micro.gradient, {}), number);
      return;
  }
}

void PipelineRun::forward_one(int number, Batch& batch) {
  const auto index = static_cast<std::size_t>(number);
  MicroBatch& micro = batch.micro_batches[index];
  micro.output = call_stage(is_first() ? batch.inputs[index] : micro.input, batch.links);
  if (is_last() && batch.trains) micro.output = loss_of(micro.output, batch.targets[index]);
  if (is_last()) batch.results.push_back(micro.output.detach());
  if (batch.trains) {
    most_live_ = std::max(most_live_, ++batch.live);
    return;
  }
  micro.input.reset();
  if (is_last()) micro.output.reset();
}

void PipelineRun::backward_one(int number, Batch& batch) {
  MicroBatch& micro = batch.micro_batches[static_cast<std::size_t>(number)];
  // The sums of the data axis are in the last backward().
  const bool sums = number == options_.micro_batches - 1;
  if (stage_.parallel != nullptr && sums) stage_.parallel->average_next_backward();
  if (stage_.sharded != nullptr) stage_.sharded->set_gradient_sync(sums);
  const at::Tensor output = std::exchange(micro.output, {});
  if (output.requires_grad())
    torch::autograd::backward({output}, {std::exchange(micro.gradient, {})});
  if (micro.input.defined()) micro.gradient = std::exchange(micro.input, {}).grad();
  --batch.live;
}

at::Tensor PipelineRun::call_stage(const at::Tensor& input, const Links& links) {
  std::optional<DataParallel::NoSync> no_sync;
  if (stage_.parallel != nullptr) no_sync.emplace(*stage_.parallel);
  try {
    at::Tensor output = stage_.forward(input);
    called_ = true;
    return output;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    // Later errors have other reasons than the cut.
    if (called_ || !links.in) throw;
    throw std::invalid_argument(
        fmt::format("Pipeline: stage {} cannot take the activations of stage {}, {}: {}",
                    ranks_.rank(), ranks_.rank() - 1, text_of(*links.in->shape()),
                    first_line(error.what_without_backtrace())));
  }
}

at::Tensor PipelineRun::loss_of(const at::Tensor& output, const at::Tensor& targets) const {
  at::Tensor loss = loss_(output, targets);
  if (loss.dim() == 0) return loss;
  throw std::invalid_argument(
      fmt::format("Pipeline: a loss of {} dimensions given, expected a scalar", loss.dim()));
}

void PipelineRun::divide_gradients() const {
  if (!options_.mean_loss || options_.micro_batches == 1) return;
  const at::NoGradGuard no_gradients;
  for (const at::Tensor& parameter : stage_.parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().div_(options_.micro_batches);
}

}  // namespace ddprun::worker
