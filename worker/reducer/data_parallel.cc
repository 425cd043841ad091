#include "worker/reducer/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "proto/log.h"
#include "worker/reducer/gradient_reducer.h"
#include "worker/reducer/module_state.h"

namespace ddprun::worker {
namespace {

// PyTorch has these options. A program that sets one relies on it, so we must not ignore it.
void refuse_unbuilt(const DataParallelOptions& options) {
  if (options.find_unused_parameters) {
    throw std::invalid_argument("find_unused_parameters is not supported yet");
  }
  if (options.static_graph) throw std::invalid_argument("static_graph is not supported yet");
}

bool on_device(const at::Tensor& tensor, Device device) {
  return device == Device::kCuda ? tensor.is_cuda() : tensor.is_cpu();
}

// Throws if the collective cannot sum the gradient of a parameter. Here, by its name, and not in
// the middle of the first backward().
void check_parameters(const std::vector<NamedTensor>& parameters, const Collective& collective) {
  for (const auto& [name, tensor] : parameters) {
    if (!on_device(tensor, collective.device()) ||
        tensor.device() != parameters.front().tensor.device()) {
      throw std::invalid_argument(
          fmt::format("parameter '{}' is on {}, the others on {}, and the collective '{}' works on "
                      "{}: the whole model must be on one device of that kind",
                      name, tensor.device().str(), parameters.front().tensor.device().str(),
                      collective.name(), collective.device() == Device::kCuda ? "cuda" : "cpu"));
    }
    if (!summable(tensor.scalar_type()) || tensor.layout() != at::kStrided) {
      throw std::invalid_argument(fmt::format(
          "parameter '{}' has type {}: only dense parameters of float, double, half and bfloat16 "
          "can be trained",
          name, c10::toString(tensor.scalar_type())));
    }
  }
}

// Frozen parameters have no gradient and no place in a bucket. The error is PyTorch's.
std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> kept;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) kept.push_back(parameter);
  }
  if (kept.empty()) {
    throw std::invalid_argument(
        "DistributedDataParallel is not needed when a module doesn't have any parameter that "
        "requires a gradient.");
  }
  return kept;
}

// A cap that the program sets is also the limit of the first bucket (data_parallel.h says why).
GradientReducer::Options reducer_options(const DataParallelOptions& options) {
  const std::size_t cap = options.bucket_cap_bytes.value_or(kBucketCapBytes);
  const std::size_t first = options.bucket_cap_bytes.value_or(kFirstBucketBytes);
  return {.bucket_limits_bytes = {options.first_bucket_bytes.value_or(first), cap},
          .mode = options.gradient_as_bucket_view ? GradientMode::kView : GradientMode::kCopy};
}

}  // namespace

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Collective& collective,
                           const DataParallelOptions& options)
    : module_(std::move(module)), collective_(collective), options_(options) {
  refuse_unbuilt(options_);
  std::vector<NamedTensor> state = parameters_of(*module_);
  std::vector<NamedTensor> parameters = trainable(state);
  check_parameters(parameters, collective_);
  for (const auto& [name, tensor] : state)
    parameters_.push_back({name, tensor, tensor.requires_grad()});
  // Before anything is copied: a copy into a tensor of another shape would fail on some ranks only.
  // Frozen parameters are copied too; forward() uses them.
  if (options_.init_sync) {
    verify_same_model(parameters, collective_);
    if (options_.broadcast_buffers) {
      for (NamedTensor& buffer : buffers_of(*module_)) state.push_back(std::move(buffer));
    }
    broadcast_values(state, collective_);
  }
  reducer_ = std::make_unique<GradientReducer>(std::move(parameters), collective_,
                                               reducer_options(options_));
}

DataParallel::~DataParallel() {
  const auto why = reducer_->why_unfinished();
  if (!why || reducer_->program_knows() || std::uncaught_exceptions() > 0) return;
  log::error(*why);
  std::_Exit(EXIT_FAILURE);  // not exit(): no code of the program may use the model now
}

// The hooks are those of construction: what is unfrozen later would never be summed.
void DataParallel::check_frozen() const {
  for (const auto& [name, tensor, trained] : parameters_) {
    if (tensor.requires_grad() == trained) continue;
    throw std::runtime_error(fmt::format(
        "parameter '{}' {} since DataParallel was made: make DataParallel after freezing", name,
        trained ? "was frozen" : "was unfrozen"));
  }
}

void DataParallel::before_forward() {
  if (at::GradMode::is_enabled()) {
    reducer_->begin_pass();
    check_frozen();
  }
  // Buffers are looked up each time: a model may replace them. They need a copy only after a pass
  // that was summed, as in PyTorch; in a row of passes under NoSync the ranks keep their own.
  if (options_.broadcast_buffers && buffers_due_) {
    broadcast_values(buffers_of(*module_), collective_);
  }
}

void DataParallel::after_forward() {
  // Asked here, not in backward(): as in PyTorch, what counts is where forward() ran.
  const bool synchronising = at::GradMode::is_enabled() && no_sync_depth_ == 0;
  if (synchronising) reducer_->arm();
  buffers_due_ = synchronising;
}

void DataParallel::check_reduced() const { reducer_->check_finished(); }

const std::vector<std::vector<std::size_t>>& DataParallel::buckets() const {
  return reducer_->plan();
}

bool DataParallel::buckets_rebuilt() const { return reducer_->rebuilt(); }

}  // namespace ddprun::worker
