#include <ATen/core/grad_mode.h>
#include <ddprun/data_parallel.h>
#include <ddprun/output_tensors.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>
#include <stdexcept>
#include <string_view>
#include <typeinfo>

#include "base/log.h"
#include "worker/collective/core/record_file.h"
#include "worker/training/data_parallel/gradient_reducer.h"
#include "worker/training/data_parallel/log_record.h"
#include "worker/training/data_parallel/malloc_settings.h"
#include "worker/training/data_parallel/module_state.h"
#include "worker/training/data_parallel/output_sink.h"
#include "worker/training/tensors/averages/parameter_index.h"
#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/summable.h"

namespace ddprun {

using namespace worker;

namespace {

constexpr const char* kStaysInTheProcess = "stays in the process";

void check_options(const DataParallelOptions& options) {
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters) {
    throw std::invalid_argument(
        "skip_all_reduce_unused_params needs find_unused_parameters: without it nobody knows which "
        "parameters are unused");
  }
}

// A name that is nowhere is a mistake.
void check_ignored(const torch::nn::Module& module, const std::vector<std::string>& names) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const std::string& name : names) {
    if (parameters.contains(name) || buffers.contains(name)) continue;
    throw std::invalid_argument(
        fmt::format("ignore: '{}' is no parameter and no buffer of the model", name));
  }
}

// By parameter, whether it is among `names`.
std::vector<bool> delayed_ones(const std::vector<NamedTensor>& parameters,
                               const std::vector<std::string>& names) {
  std::vector<bool> delayed(parameters.size(), false);
  for (const std::string& name : names) {
    const auto found = std::ranges::find(parameters, name, &NamedTensor::name);
    if (found == parameters.end()) {
      throw std::invalid_argument(fmt::format(
          "delay_all_reduce: '{}' is no parameter of the model that needs a gradient", name));
    }
    delayed[static_cast<std::size_t>(found - parameters.begin())] = true;
  }
  return delayed;
}

// Finds it by the name of its type, since its room is above this one.
bool has_sync_batch_norm(const torch::nn::Module& module) {
  return std::ranges::any_of(module.modules(), [](const auto& each) {
    return each->name().find("SyncBatchNorm") != std::string::npos;
  });
}

// Throws if the collective cannot sum the gradient of a parameter. Here, by its name, and not in
// the middle of the first backward().
void check_parameters(const std::vector<NamedTensor>& parameters, const Collective& collective) {
  for (const auto& [name, tensor] : parameters) {
    if (tensor.device().type() != device_of(collective)) {
      throw std::invalid_argument(fmt::format(
          "parameter '{}' is on {}, and the collective '{}' works on {}: the whole model "
          "must be on devices of that kind",
          name, tensor.device().str(), collective.name(),
          c10::DeviceTypeName(device_of(collective), /*lower_case=*/true)));
    }
    if (!summable(tensor.scalar_type()) || tensor.layout() != at::kStrided) {
      throw std::invalid_argument(fmt::format(
          "parameter '{}' has type {}: only dense parameters of float, double, half, bfloat16, "
          "complex float and complex double can be trained",
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

// Those whose numbers can be compared.
std::vector<NamedParameter> frozen_ones(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedParameter> frozen;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad() && tensor.layout() == at::kStrided && tensor.is_cpu())
      frozen.push_back({name, tensor});
  }
  return frozen;
}

// PyTorch's variable, in its only value that does something (Reducer::rebuild_buckets, 2.11).
bool last_bucket_is_small() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* value = std::getenv("DDP_SET_LAST_BUCKET_CAP");
  return value != nullptr && std::string_view(value) == "1";
}

// A cap that the program sets is also the limit of the first bucket (data_parallel.h says why).
GradientReducer::Options reducer_options(const DataParallelOptions& options) {
  const std::size_t cap = options.bucket_cap_bytes.value_or(kBucketCapBytes);
  const std::size_t first = options.bucket_cap_bytes.value_or(kFirstBucketBytes);
  GradientReducer::Options made{
      .first_limits_bytes = {},
      .bucket_limits_bytes = {options.first_bucket_bytes.value_or(first), cap},
      .limits_from_the_last = last_bucket_is_small(),
      .mode = options.gradient_as_bucket_view ? GradientMode::kView : GradientMode::kCopy,
      .sparse = {},
      .delayed = {},
      .skip_unused_buckets = options.skip_all_reduce_unused_params};
  if (options.static_graph) {
    made.graph = GraphMode::kStatic;
  } else if (options.find_unused_parameters) {
    // They are never rebuilt, so they must be small enough from the start.
    made.graph = GraphMode::kFindUnused;
    made.first_limits_bytes = made.bucket_limits_bytes;
  }
  if (!options.bucket_cap_bytes_list.empty()) {
    made.first_limits_bytes = made.bucket_limits_bytes = options.bucket_cap_bytes_list;
  }
  return made;
}

// LibTorch's own ones that correct for how often they have stepped.
bool counts_on_host(const std::type_info& optimizer) {
  return optimizer == typeid(torch::optim::Adam) || optimizer == typeid(torch::optim::AdamW) ||
         optimizer == typeid(torch::optim::Adagrad);
}

}  // namespace

// One rank's facts about its own model and options.
struct DataParallel::Prepared {
  std::vector<NamedTensor> state;  // all parameters
  std::vector<NamedTensor> parameters;
  GradientReducer::Options reducer;
};

DataParallel::Prepared DataParallel::prepare() const {
  check_options(options_);
  check_ignored(*module_, options_.ignore);
  Prepared prepared;
  prepared.state = parameters_of(*module_, options_.ignore);
  prepared.parameters = trainable(prepared.state);
  check_parameters(prepared.parameters, *collective_);
  prepared.reducer = reducer_options(options_);
  prepared.reducer.alike = options_.init_sync;
  prepared.reducer.frozen = frozen_ones(prepared.state);
  prepared.reducer.sparse = sparse_ones(*module_, prepared.parameters, options_.sparse_parameters);
  prepared.reducer.delayed = delayed_ones(prepared.parameters, options_.delay_all_reduce);
  return prepared;
}

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Collective& collective,
                           const DataParallelOptions& options)
    : module_(std::move(module)), collective_(&collective), options_(options) {
  meet();
  on_backward_ = std::make_shared<std::function<void()>>([this]() { reducer().on_backward(); });
}

// All ranks of a collective call it together, before their first pass.
void DataParallel::meet() {
  Prepared prepared;
  try {
    prepared = prepare();
  } catch (const std::invalid_argument& refusal) {
    // The other ranks are on their way to compare their models with this one.
    if (options_.init_sync) tell_refusal(refusal.what(), *collective_);
    throw;
  }
  if (options_.keep_freed_memory && collective_->device() == Device::kCpu) {
    const std::string variable = set_up_malloc();
    freed_memory_ = variable.empty() ? kStaysInTheProcess : "as " + variable + " says";
  }
  auto& [state, parameters, reducer] = prepared;
  parameters_.clear();
  for (const auto& [name, tensor] : state)
    parameters_.push_back({name, tensor, tensor.requires_grad()});
  copies_.clear();
  list_parameters(module_->parameters());
  // This comes before any copy. A copy into a tensor of another shape would fail on some ranks
  // only. Frozen parameters are copied too; forward() uses them.
  if (options_.init_sync) {
    verify_same_model(parameters, *collective_);
    if (options_.broadcast_buffers) {
      for (NamedTensor& buffer : buffers_of(*module_, options_.ignore))
        state.push_back(std::move(buffer));
    }
    broadcast_values(state, *collective_);
  }
  // These are the old collective's: there may be no room for the buckets of both.
  reducer_.reset();
  reducer_ = std::make_unique<GradientReducer>(std::move(parameters), *collective_, reducer);
}

DataParallel::~DataParallel() {
  copies_.clear();
  list_parameters({});
  if (reducer_ == nullptr) return;
  const auto why = reducer_->why_unfinished();
  if (!why || reducer_->program_knows() || std::uncaught_exceptions() > 0) return;
  log::error(*why);
  std::_Exit(EXIT_FAILURE);  // not exit(): no code of the program may use the model now
}

GradientReducer& DataParallel::reducer() const {
  if (reducer_ == nullptr)
    throw std::logic_error(
        "this DataParallel has no buckets, since its resize() failed: resize() it again");
  return *reducer_;
}

void DataParallel::before_forward() {
  const bool records = at::GradMode::is_enabled();
  trains_ = is_trained();
  int source = 0;
  if (join_ != nullptr) {
    const bool synchronises = records && no_sync_depth_ == 0 && trains_;
    source = meet_joined({.active = true, .records = records, .synchronises = synchronises}).source;
  }
  if (records) {
    reducer().begin_pass();
    if (no_sync_depth_ > 0) reducer().check_silent();
    check_frozen();
  }
  leaves_buffers_ =
      join_ == nullptr && (evaluates() || (records && reducer().waits_for_backward()));
  if (!leaves_buffers_) sync_buffers(BufferMoment::kBeforeForward, source);
}

// A rank may evaluate alone: then nobody else is there to send it buffers, or to take them.
bool DataParallel::evaluates() const {
  return !at::GradMode::is_enabled() && !module_->is_training();
}

// Buffers are looked up each time: a model may replace them. They need a copy only after a pass
// that was summed, as in PyTorch. In a row of passes under NoSync the ranks keep their own.
void DataParallel::sync_buffers(BufferMoment moment, int source) {
  if (!options_.broadcast_buffers || !buffers_due_ || moment != buffer_moment_) return;
  if (!buffer_hook_ && collective_->world_size() == 1) return;
  std::vector<NamedTensor> buffers = buffers_of(*module_, options_.ignore);
  if (buffers.empty()) return;
  // Else a rank whose forward() has thrown would send them again, and wait for the others.
  buffers_due_ = false;
  if (!buffer_hook_) return broadcast_values(buffers, *collective_, source, "buffers in forward()");
  const at::NoGradGuard no_grad;
  buffer_hook_(buffers, *collective_);
}

bool DataParallel::follows_outputs() const {
  return options_.find_unused_parameters || options_.static_graph;
}

void DataParallel::after_forward() {
  if (follows_outputs() && at::GradMode::is_enabled()) {
    throw std::invalid_argument(
        "find_unused_parameters and static_graph need the outputs of forward(), as tensors or as "
        "vectors, arrays, tuples, pairs, optionals or maps of tensors: give them to "
        "after_forward(), and specialise OutputTensors for a type of your own");
  }
  end_forward({});
}

void DataParallel::end_forward(const std::vector<at::Tensor*>& outputs) {
  if (join_ != nullptr || !evaluates()) sync_buffers(BufferMoment::kAfterForward);
  // Asked here, not in backward(): as in PyTorch, what counts is where forward() ran.
  const bool synchronising = at::GradMode::is_enabled() && no_sync_depth_ == 0;
  // In a Join the ranks without batches take frozen passes for others that sum nothing.
  const bool makes_due = synchronising && (trains_ || join_ == nullptr);
  buffers_due_ = makes_due || (leaves_buffers_ && buffers_due_);
  if (!at::GradMode::is_enabled()) return;
  if (no_sync_depth_ > 0) reducer().begin_silent_pass();
  if (synchronising && trains_) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(outputs.size());
    for (const at::Tensor* output : outputs) tensors.push_back(*output);
    reducer().arm(tensors);
  }
  if (follows_outputs()) sink_outputs(outputs, on_backward_);
}

bool DataParallel::forwards_may_run_ahead() const {
  return !follows_outputs() && !reducer().steps_itself();
}

void DataParallel::average_next_backward() {
  if (!forwards_may_run_ahead())
    throw std::logic_error(
        "average_next_backward(): find_unused_parameters, static_graph and step_in_backward() need "
        "a forward() right before their backward()");
  if (join_ != nullptr || no_sync_depth_ > 0)
    throw std::logic_error(fmt::format(
        "average_next_backward(): called while a {} lives, which says itself what is averaged",
        join_ != nullptr ? "Join" : "NoSync"));
  if (!trains_) return;
  buffers_due_ = true;
  reducer().arm({});
}

LogRecord DataParallel::log_record() const {
  LogRecord record;
  auto& texts = record.texts;
  auto& numbers = record.numbers;
  std::set<std::string> dtypes;
  std::int64_t bytes = 0;
  for (const auto& [name, tensor, trained] : parameters_) {
    if (!trained) continue;
    dtypes.emplace(tensor.dtype().name());
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    ++numbers["num_parameter_tensors"];
  }
  const std::vector<c10::Device>& devices = reducer().devices();
  const at::Device device = devices.front();
  const bool is_one_gpu = devices.size() == 1 && !device.is_cpu();
  texts["module_name"] = module_->name();
  texts["backend_name"] = collective_->name();
  texts["device_ids"] = is_one_gpu ? std::to_string(device.index()) : "";
  texts["dtypes"] = fmt::format("{}", fmt::join(dtypes, ", "));
  numbers["world_size"] = collective_->world_size();
  numbers["rank"] = collective_->rank();
  numbers["output_device"] = is_one_gpu ? device.index() : -1;
  numbers["broadcast_buffers"] = options_.broadcast_buffers ? 1 : 0;
  numbers["has_sync_bn"] = has_sync_batch_norm(*module_) ? 1 : 0;
  numbers["is_multi_device_module"] = devices.size() > 1 ? 1 : 0;
  numbers["join_uneven_inputs"] = was_joined_ ? 1 : 0;
  numbers["static_graph"] = options_.static_graph ? 1 : 0;
  numbers["find_unused_parameters"] = options_.find_unused_parameters ? 1 : 0;
  numbers["gradient_as_bucket_view"] = options_.gradient_as_bucket_view ? 1 : 0;
  texts["freed_memory"] = freed_memory_;
  numbers["keep_freed_memory"] = freed_memory_ == kStaysInTheProcess ? 1 : 0;
  const auto& caps = options_.bucket_cap_bytes_list;
  numbers["bucket_cap_bytes"] = static_cast<std::int64_t>(
      caps.empty() ? options_.bucket_cap_bytes.value_or(kBucketCapBytes) : std::ranges::max(caps));
  numbers["total_parameter_size_bytes"] = bytes;
  write_environment(record);
  reducer().write(record);
  return record;
}

void DataParallel::write_log_record(const std::string& path) const {
  if (const auto failed = write_record_file(path, log_record().to_json()))
    throw std::runtime_error("write log record " + path + ": " + failed.message());
}

void DataParallel::comm_hook(CommHook hook) { reducer().set_comm_hook(std::move(hook)); }

void DataParallel::step_in_backward(ParameterStep step) { reducer().set_step(std::move(step)); }

void DataParallel::buffer_hook(BufferHook hook, BufferMoment moment) {
  if (buffer_hook_) throw std::runtime_error("buffer_hook() can only be called once");
  buffer_hook_ = std::move(hook);
  buffer_moment_ = moment;
}

// Some ranks may have begun a forward() that others have not: all copy the buffers again.
void DataParallel::reset() {
  reducer().reset();
  buffers_due_ = true;
}

void DataParallel::resize(Collective& collective) {
  for (const auto& [name, tensor, trained] : parameters_)
    if (trained) tensor.mutable_grad().reset();
  collective_ = &collective;
  state_of_.reset();  // a rank of the collective before; share_optimizer_state() gives rank 0's
  shared_.clear();
  buffer_hook_ = nullptr;
  buffer_moment_ = BufferMoment::kBeforeForward;
  buffers_due_ = true;
  meet();
}

void DataParallel::resize(std::shared_ptr<Collective> collective) {
  const auto before = std::exchange(held_, std::move(collective));  // until its memory is given up
  resize(*held_);
}

void DataParallel::check_reduced() const {
  reducer().check_averaged();
  reducer().check_collectives();
}

void DataParallel::count_step() {
  if (reducer().steps_itself())
    throw std::runtime_error("step(): backward() has made the steps, by step_in_backward()");
  reducer().count_step_made(own_stepped_);
}

void DataParallel::note_settings(const torch::optim::Optimizer& optimizer) {
  if (counts_on_host(typeid(optimizer)) && collective_->is_capturing()) {
    throw std::runtime_error(
        "step() in a capture: this optimizer counts its steps on the host, and a graph repeats the "
        "number. Take ddprun::Adam or ddprun::AdamW");
  }
  reducer().note_settings(optimizer);
}

const std::vector<std::vector<std::size_t>>& DataParallel::buckets() const {
  return reducer().plan();
}

bool DataParallel::buckets_rebuilt() const { return reducer().rebuilt(); }

bool DataParallel::restore_buckets(const std::vector<std::vector<std::size_t>>& layout) {
  return reducer().restore(layout);
}

const std::vector<std::size_t>& DataParallel::ready_order() const {
  return reducer().gradient_order();
}

}  // namespace ddprun
