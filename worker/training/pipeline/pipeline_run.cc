#include "worker/training/pipeline/pipeline_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

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
  meet();
}

// All ranks get the same answer.
void PipelineRun::meet() {
  const PipelineTerms mine{.micro_batches = options_.micro_batches,
                           .order = order_of(options_.schedule),
                           .mean_loss = options_.mean_loss,
                           .has_loss = static_cast<bool>(loss_)};
  const auto told = ranks_.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  std::vector<PipelineTerms> by_rank(told.size());
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].size() != sizeof mine)
      throw CollectiveError(fmt::format("Pipeline: rank {} makes something else", rank));
    std::memcpy(&by_rank[rank], told[rank].data(), sizeof mine);
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

// A rank that need not have the batch looks at its rows all the same: then all refuse it.
std::vector<at::Tensor> PipelineRun::cut(const at::Tensor& whole, bool needed,
                                         const char* what) const {
  if (!whole.defined() && !needed) return {};
  if (!whole.defined() || whole.dim() == 0)
    throw std::invalid_argument(
        fmt::format("Pipeline: {} {} given on rank {}, expected sizes (rows, ...)", what,
                    whole.defined() ? "without rows" : "that are undefined", ranks_.rank()));
  const auto rows = rows_of_micro_batch(whole.size(0), options_.micro_batches, what);
  return needed ? whole.split(rows) : std::vector<at::Tensor>();
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
      return batch.links.out->send(micro.output, number);
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
  most_live_ = std::max(most_live_, ++batch.live);
}

void PipelineRun::backward_one(int number, Batch& batch) {
  MicroBatch& micro = batch.micro_batches[static_cast<std::size_t>(number)];
  // The sums of the data axis are in the last backward().
  if (stage_.parallel != nullptr && number == options_.micro_batches - 1)
    stage_.parallel->average_next_backward();
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
