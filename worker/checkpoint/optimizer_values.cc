#include "worker/checkpoint/optimizer_values.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/module_values.h"

namespace ddprun::worker {
namespace {

namespace optim = torch::optim;

// Puts a tensor into the dict, if it is defined. Returns the first failure.
void put_tensor(Value::Dict& dict, const char* key, const at::Tensor& tensor, Result<void>& done) {
  if (!tensor.defined() || !done) return;
  auto value = tensor_value(tensor);
  if (!value) {
    done = value.error();
    return;
  }
  dict.set(key, std::move(*value));
}

// Takes the tensor at `key`, in the parameter's dtype and on its device, as Python does. Undefined
// where it is not there, or None.
Result<at::Tensor> take_tensor(const Value& dict, const char* key, const at::Tensor& parameter,
                               TensorReader& reader) {
  const Value* value = dict.as<Value::Dict>()->find(key);
  if (value == nullptr || value->none()) return at::Tensor();
  const auto* tensor = value->as<TensorValue>();
  if (tensor == nullptr || tensor->sizes != parameter.sizes().vec()) {
    return refused(fmt::format("'{}' has another shape than its parameter", key));
  }
  const auto read = reader.read(*tensor);
  if (!read) return read.error();
  // A clone: the storage may be another tensor's, too.
  return read->to(parameter.device(), parameter.scalar_type()).clone();
}

Result<at::Tensor> need_tensor(const Value& dict, const char* key, const at::Tensor& parameter,
                               TensorReader& reader) {
  auto taken = take_tensor(dict, key, parameter, reader);
  if (taken && !taken->defined()) return refused(fmt::format("no key '{}'", key));
  return taken;
}

// Python counts steps in a tensor of float32, and did in an int before 2022.
Result<std::int64_t> take_steps(const Value& dict, TensorReader& reader) {
  const auto value = field_value(dict, "step");
  if (!value) return value.error();
  const auto* tensor = (*value)->as<TensorValue>();
  if (tensor == nullptr) return field<std::int64_t>(dict, "step");
  const auto read = reader.read(*tensor);
  if (!read) return read.error();
  if (read->numel() != 1) return refused("'step' is no single number");
  const double steps = read->item().toDouble();
  if (!(steps >= 0 && steps < 9e15)) return refused("'step' is no count");
  return static_cast<std::int64_t>(steps);
}

Value::Dict common_group(double lr) {
  Value::Dict group;
  group.set("lr", Value(lr));
  return group;
}

// Adds the other options of Python's optimizers, at their defaults.
void put_flags(Value::Dict& group, std::initializer_list<const char*> flags) {
  for (const char* flag : flags) group.set(flag, Value(false));
  group.set("foreach", Value());
  group.set("fused", Value());
}

// One struct for each kind of optimizer: how its options and its state of one parameter look.
struct SgdKind {
  using Options = optim::SGDOptions;
  using State = optim::SGDParamState;

  static Value::Dict group(const Options& options) {
    Value::Dict group = common_group(options.lr());
    group.set("momentum", Value(options.momentum()));
    group.set("dampening", Value(options.dampening()));
    group.set("weight_decay", Value(options.weight_decay()));
    group.set("nesterov", Value(options.nesterov()));
    put_flags(group, {"maximize", "differentiable"});
    return group;
  }

  static Result<void> load_group(const Value& group, Options& options) {
    const auto lr = field<double>(group, "lr");
    const auto momentum = field<double>(group, "momentum");
    const auto dampening = field<double>(group, "dampening");
    const auto decay = field<double>(group, "weight_decay");
    const auto nesterov = field<bool>(group, "nesterov");
    for (const auto* each : {&lr, &momentum, &dampening, &decay}) {
      if (!*each) return each->error();
    }
    if (!nesterov) return nesterov.error();
    options.lr(*lr).momentum(*momentum).dampening(*dampening).weight_decay(*decay);
    options.nesterov(*nesterov);
    return {};
  }

  static Result<Value::Dict> state(const State& state) {
    Value::Dict dict;
    Result<void> done;
    put_tensor(dict, "momentum_buffer", state.momentum_buffer(), done);
    if (!done) return done.error();
    return dict;
  }

  // Null if there is none yet.
  static Result<std::unique_ptr<State>> load_state(const Value& dict, const at::Tensor& parameter,
                                                   TensorReader& reader) {
    auto buffer = take_tensor(dict, "momentum_buffer", parameter, reader);
    if (!buffer) return buffer.error();
    if (!buffer->defined()) return std::unique_ptr<State>();
    auto state = std::make_unique<State>();
    state->momentum_buffer(std::move(*buffer));
    return state;
  }
};

template <typename AnyOptions, typename AnyState, bool kDecoupled>
struct AdamKind {
  using Options = AnyOptions;
  using State = AnyState;

  static Value::Dict group(const Options& options) {
    Value::Dict group = common_group(options.lr());
    const auto [beta1, beta2] = options.betas();
    group.set("betas", Value(Value::Tuple{{Value(beta1), Value(beta2)}}));
    group.set("eps", Value(options.eps()));
    group.set("weight_decay", Value(options.weight_decay()));
    group.set("amsgrad", Value(options.amsgrad()));
    put_flags(group, {"maximize", "capturable", "differentiable"});
    group.set("decoupled_weight_decay", Value(kDecoupled));
    return group;
  }

  static Result<void> load_group(const Value& group, Options& options) {
    const auto lr = field<double>(group, "lr");
    const auto eps = field<double>(group, "eps");
    const auto decay = field<double>(group, "weight_decay");
    const auto amsgrad = field<bool>(group, "amsgrad");
    for (const auto* each : {&lr, &eps, &decay}) {
      if (!*each) return each->error();
    }
    if (!amsgrad) return amsgrad.error();
    if (auto loaded = load_betas(group, options); !loaded) return loaded;
    if (auto checked = check_decoupled(group); !checked) return checked;
    options.lr(*lr).eps(*eps).weight_decay(*decay).amsgrad(*amsgrad);
    return {};
  }

  static Result<void> load_betas(const Value& group, Options& options) {
    const auto betas = field_value(group, "betas");
    if (!betas) return betas.error();
    const auto* pair = (*betas)->items();
    const auto beta = [pair](std::size_t i) {
      return pair == nullptr || pair->size() != 2 ? nullptr : (*pair)[i].template as<double>();
    };
    if (beta(0) == nullptr || beta(1) == nullptr) return refused("'betas' are no two floats");
    options.betas(std::make_tuple(*beta(0), *beta(1)));
    return {};
  }

  static Result<void> check_decoupled(const Value& group) {
    const Value* decoupled = group.as<Value::Dict>()->find("decoupled_weight_decay");
    if (decoupled == nullptr) return {};
    const bool* given = decoupled->as<bool>();
    if (given != nullptr && *given == kDecoupled) return {};
    return refused(fmt::format("decoupled_weight_decay is not {}: the state is {}'s",
                               kDecoupled ? "True" : "False", kDecoupled ? "Adam" : "AdamW"));
  }

  static Result<Value::Dict> state(const State& state) {
    Value::Dict dict;
    Result<void> done;
    const auto steps = static_cast<double>(state.step());
    put_tensor(dict, "step", at::full({}, steps, at::kFloat), done);
    put_tensor(dict, "exp_avg", state.exp_avg(), done);
    put_tensor(dict, "exp_avg_sq", state.exp_avg_sq(), done);
    put_tensor(dict, "max_exp_avg_sq", state.max_exp_avg_sq(), done);
    if (!done) return done.error();
    return dict;
  }

  static Result<std::unique_ptr<State>> load_state(const Value& dict, const at::Tensor& parameter,
                                                   TensorReader& reader) {
    const auto steps = take_steps(dict, reader);
    auto average = need_tensor(dict, "exp_avg", parameter, reader);
    auto squares = need_tensor(dict, "exp_avg_sq", parameter, reader);
    auto most = take_tensor(dict, "max_exp_avg_sq", parameter, reader);
    if (!steps) return steps.error();
    for (const auto* each : {&average, &squares, &most}) {
      if (!*each) return each->error();
    }
    auto state = std::make_unique<State>();
    state->step(*steps);
    state->exp_avg(std::move(*average));
    state->exp_avg_sq(std::move(*squares));
    if (most->defined()) state->max_exp_avg_sq(std::move(*most));
    return state;
  }
};

using AdamOnly = AdamKind<optim::AdamOptions, optim::AdamParamState, false>;
using AdamWOnly = AdamKind<optim::AdamWOptions, optim::AdamWParamState, true>;

template <typename Kind>
Result<Value> save(const optim::Optimizer& optimizer) {
  Value::Dict states;
  Value::List groups;
  std::int64_t index = 0;  // counts over all groups
  for (const auto& group : optimizer.param_groups()) {
    Value::Dict saved = Kind::group(static_cast<const typename Kind::Options&>(group.options()));
    Value::List indices;
    for (const at::Tensor& parameter : group.params()) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state != optimizer.state().end()) {
        auto dict = Kind::state(static_cast<const typename Kind::State&>(*state->second));
        if (!dict) return dict.error();
        states.entries.push_back({index, Value(std::move(*dict))});
      }
      indices.items.emplace_back(index++);
    }
    saved.set("params", Value(std::move(indices)));
    groups.items.emplace_back(std::move(saved));
  }
  Value::Dict dict;
  dict.set("state", Value(std::move(states)));
  dict.set("param_groups", Value(std::move(groups)));
  return Value(std::move(dict));
}

Result<void> check_group(const Value& group, std::size_t number, std::size_t parameters) {
  const auto* dict = group.as<Value::Dict>();
  const Value* ids = dict == nullptr ? nullptr : dict->find("params");
  const auto* items = ids == nullptr ? nullptr : ids->items();
  if (items == nullptr) return refused(fmt::format("group {} has no list 'params'", number));
  if (items->size() != parameters) {
    return refused(fmt::format("group {} has {} parameters, the optimizer's has {}", number,
                               items->size(), parameters));
  }
  const Value* maximize = dict->find("maximize");
  const bool* set = maximize == nullptr ? nullptr : maximize->as<bool>();
  if (set != nullptr && *set) {
    return refused(fmt::format("group {} has maximize=True, which LibTorch has not", number));
  }
  return {};
}

// The state that a file holds, before the optimizer gets it.
template <typename Kind>
struct FileState {
  std::vector<std::unique_ptr<typename Kind::Options>> options;                 // by group
  std::vector<std::pair<void*, std::unique_ptr<typename Kind::State>>> states;  // by parameter
  std::size_t used = 0;  // of the file's states
  TensorReader reader;
};

template <typename Kind>
Result<void> read_state(const Value::Dict& states, const Value& id, const at::Tensor& parameter,
                        FileState<Kind>& loaded) {
  const auto* key = id.as<std::int64_t>();
  const Value* state = key == nullptr ? nullptr : states.find(Value::Key(*key));
  if (state == nullptr) return {};
  ++loaded.used;
  if (state->as<Value::Dict>() == nullptr) return refused("the state of a parameter is no dict");
  auto read = Kind::load_state(*state, parameter, loaded.reader);
  if (!read)
    return Error(read.error().code(),
                 fmt::format("parameter {}: {}", *key, read.error().message()));
  if (*read) loaded.states.emplace_back(parameter.unsafeGetTensorImpl(), std::move(*read));
  return {};
}

template <typename Kind>
Result<void> read_group(const Value::Dict& states, const Value& saved,
                        const optim::OptimizerParamGroup& group, FileState<Kind>& loaded) {
  loaded.options.push_back(std::make_unique<typename Kind::Options>(
      static_cast<const typename Kind::Options&>(group.options())));
  if (auto read = Kind::load_group(saved, *loaded.options.back()); !read) return read;
  const auto& ids = *(*field_value(saved, "params"))->items();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    auto read = read_state<Kind>(states, ids[i], group.params()[i], loaded);
    if (!read) return read;
  }
  return {};
}

// Everything is read before anything is changed.
template <typename Kind>
Result<void> load(const Value::Dict& states, const std::vector<Value>& groups,
                  optim::Optimizer& optimizer) {
  FileState<Kind> loaded;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& group = optimizer.param_groups()[i];
    if (auto checked = check_group(groups[i], i, group.params().size()); !checked) return checked;
    if (auto read = read_group<Kind>(states, groups[i], group, loaded); !read) return read;
  }
  if (loaded.used != states.entries.size())
    return refused("there is state of parameters in no group");
  for (std::size_t i = 0; i < loaded.options.size(); ++i) {
    optimizer.param_groups()[i].set_options(std::move(loaded.options[i]));
  }
  optimizer.state().clear();
  for (auto& [parameter, state] : loaded.states) optimizer.state()[parameter] = std::move(state);
  return {};
}

Error unknown_kind() {
  return {ErrorCode::kInvalidArgument,
          "the optimizer's state cannot be saved or loaded: only that of SGD, Adam and AdamW"};
}

}  // namespace

Result<Value> optimizer_state(const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) return save<SgdKind>(optimizer);
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) return save<AdamOnly>(optimizer);
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) return save<AdamWOnly>(optimizer);
  return unknown_kind();
}

Result<void> load_optimizer_state(const Value& state, optim::Optimizer& optimizer) {
  const auto states = field_value(state, "state");
  const auto groups = field_value(state, "param_groups");
  if (!states) return states.error();
  if (!groups) return groups.error();
  const auto* dict = (*states)->as<Value::Dict>();
  const auto* items = (*groups)->items();
  if (dict == nullptr || items == nullptr) {
    return refused("'state' is no dict, or 'param_groups' no list");
  }
  if (items->size() != optimizer.param_groups().size()) {
    return refused(fmt::format("{} groups of parameters, the optimizer has {}", items->size(),
                               optimizer.param_groups().size()));
  }
  if (dynamic_cast<optim::SGD*>(&optimizer) != nullptr) {
    return load<SgdKind>(*dict, *items, optimizer);
  }
  if (dynamic_cast<optim::Adam*>(&optimizer) != nullptr) {
    return load<AdamOnly>(*dict, *items, optimizer);
  }
  if (dynamic_cast<optim::AdamW*>(&optimizer) != nullptr) {
    return load<AdamWOnly>(*dict, *items, optimizer);
  }
  return unknown_kind();
}

}  // namespace ddprun::worker
