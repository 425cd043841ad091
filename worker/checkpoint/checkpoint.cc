#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/checkpoint/atomic_file.h"
#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/module_values.h"
#include "worker/checkpoint/optimizer_values.h"
#include "worker/checkpoint/run_values.h"
#include "worker/training/tensors/stepped_tensors.h"

namespace ddprun {

using namespace worker;

namespace {

at::Generator random_numbers() { return at::globalContext().defaultGenerator(at::kCPU); }

// As torch.get_rng_state() gives it.
at::Tensor rng_state() {
  at::Generator generator = random_numbers();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

Result<Value> worker::own_rng() { return tensor_value(rng_state()); }

// One tensor a rank.
Result<Value> worker::gather_rng(Collective& ranks) {
  const at::Tensor mine = rng_state();
  const auto all =
      ranks.all_gather_bytes({static_cast<const std::byte*>(mine.const_data_ptr()), mine.nbytes()});
  Value::List states;
  for (const auto& bytes : all) {
    at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
    auto value = tensor_value(state);
    if (!value) return value.error();
    states.items.push_back(std::move(*value));
  }
  return Value(std::move(states));
}

namespace {

Value layout_value(const Layout& layout) {
  Value::List buckets;
  for (const auto& bucket : layout) {
    Value::List indices;
    for (const std::size_t index : bucket) {
      indices.items.emplace_back(static_cast<std::int64_t>(index));
    }
    buckets.items.emplace_back(std::move(indices));
  }
  return Value(std::move(buckets));
}

}  // namespace

std::optional<Layout> worker::layout_of(const Value& value) {
  Layout layout;
  if (value.items() == nullptr) return std::nullopt;
  for (const Value& bucket : *value.items()) {
    if (bucket.items() == nullptr) return std::nullopt;
    auto& indices = layout.emplace_back();
    for (const Value& index : *bucket.items()) {
      const auto* number = index.as<std::int64_t>();
      if (number == nullptr || *number < 0) return std::nullopt;
      indices.push_back(static_cast<std::size_t>(*number));
    }
  }
  return layout;
}

namespace {

// Python finds an optimizer's state by the places of the module's parameters. Tensors that are none
// of these (float32 masters) stand for them, place by place; shards of a ShardedParallel cannot.
Result<void> check_stepped(const CheckpointRun& run) {
  const auto parameters = run.module.parameters();
  const auto tensors = stepped_tensors(run.optimizer);
  if (any_is_of(tensors, parameters)) return {};
  std::vector<c10::IntArrayRef> trained, stepped;
  for (const at::Tensor& parameter : parameters)
    if (parameter.requires_grad()) trained.push_back(parameter.sizes());
  for (const at::Tensor& tensor : tensors) stepped.push_back(tensor.sizes());
  if (stepped == trained) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "the optimizer steps none of the module's parameters, and nothing of their sizes: "
      "the state of shards cannot be saved, ShardedParallel::full_state_dict() has the weights");
}

}  // namespace

Value::Dict worker::info_values(const CheckpointRun& run, const CheckpointInfo& info) {
  Value::Dict sampler;
  sampler.set("epoch", Value(info.epoch));
  sampler.set("consumed", Value(info.consumed));
  Value::Dict dict;
  dict.set("epoch", Value(info.epoch));
  dict.set("arch", Value(info.arch));
  dict.set("best_prec1", Value(info.best_prec1));
  dict.set("sampler", Value(std::move(sampler)));
  dict.set("world_size", Value(run.ranks.world_size()));
  if (run.parallel != nullptr && run.parallel->buckets_rebuilt()) {
    dict.set("buckets", layout_value(run.parallel->buckets()));
  }
  if (!info.extra.entries.empty()) dict.set("extra", Value(info.extra));
  return dict;
}

Result<Value> worker::checkpoint_value(const CheckpointRun& run, const CheckpointInfo& info,
                                       Value rng) {
  if (auto checked = check_stepped(run); !checked) return checked.error();
  auto weights = state_dict(run.module);
  if (!weights) return weights.error();
  auto optimizer = optimizer_state(run.optimizer);
  if (!optimizer) return optimizer.error();
  Value::Dict dict;
  dict.set("epoch", Value(info.epoch));
  dict.set("arch", Value(info.arch));
  dict.set("state_dict", std::move(*weights));
  dict.set("best_prec1", Value(info.best_prec1));
  dict.set("optimizer", std::move(*optimizer));
  for (auto& [key, value] : info_values(run, info).entries) dict.set(key, std::move(value));
  dict.set("rng", std::move(rng));
  return Value(std::move(dict));
}

namespace {

template <typename Type>
Type field_or(const Value& dict, std::string_view key, Type other) {
  auto found = field<Type>(dict, key);
  return found ? std::move(*found) : std::move(other);
}

// A number, also one in a tensor, as programs write their best accuracy.
double number_at(const Value& dict, std::string_view key) {
  if (const auto number = field<double>(dict, key)) return *number;
  const auto value = field_value(dict, key);
  const auto* tensor = value ? (*value)->as<TensorValue>() : nullptr;
  if (tensor == nullptr) return 0;
  TensorReader reader;
  const auto read = reader.read(*tensor);
  return read && read->numel() == 1 && !read->is_complex() ? read->item().toDouble() : 0;
}

}  // namespace

CheckpointInfo worker::info_of(const Value& file) {
  CheckpointInfo info;
  info.epoch = field_or<std::int64_t>(file, "epoch", 0);
  info.arch = field_or<std::string>(file, "arch", "");
  // The newer of PyTorch's examples say best_acc1.
  info.best_prec1 = std::max(number_at(file, "best_prec1"), number_at(file, "best_acc1"));
  const auto sampler = field_value(file, "sampler");
  if (sampler) info.consumed = field_or<std::int64_t>(**sampler, "consumed", 0);
  const auto extra = field_value(file, "extra");
  if (extra && (*extra)->as<Value::Dict>() != nullptr) info.extra = *(*extra)->as<Value::Dict>();
  return info;
}

namespace {

// Distributed checkpoints name an optimizer's parameters; others count them. Only counted ones are
// read.
bool is_by_number(const Value& optimizer) {
  const auto* dict = optimizer.as<Value::Dict>();
  const Value* states = dict == nullptr ? nullptr : dict->find("state");
  const auto* by_key = states == nullptr ? nullptr : states->as<Value::Dict>();
  if (by_key == nullptr)
    return dict != nullptr && states != nullptr;  // load_optimizer_state() says what is wrong
  return by_key->entries.empty() ||
         std::holds_alternative<std::int64_t>(by_key->entries.front().key);
}

// The parts that one rank can load without the others.
struct LocalState {
  LoadedCheckpoint loaded;
  std::optional<Layout> layout;
  std::uint64_t fingerprint = 0;
};

}  // namespace

Result<void> worker::load_own_rng(const Value& state) {
  const auto* tensor = state.as<TensorValue>();
  if (tensor == nullptr) return Error(ErrorCode::kProtocol, "'rng' holds no tensor");
  TensorReader reader;
  const auto read = reader.read(*tensor);
  if (!read) return read.error();
  at::Generator generator = random_numbers();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(*read);
  return {};
}

namespace {

Result<void> load_rng(const Value& states, const CheckpointRun& run, bool& done) {
  const auto* items = states.items();
  if (items == nullptr || !std::cmp_equal(items->size(), run.ranks.world_size())) return {};
  auto loaded = load_own_rng((*items)[static_cast<std::size_t>(run.ranks.rank())]);
  done = static_cast<bool>(loaded);
  return loaded;
}

Result<LocalState> load_here(const std::filesystem::path& path, const CheckpointRun& run,
                             const LoadOptions& options) {
  auto file = read_checkpoint_file(path, Objects::kPassOver);
  if (!file) return file.error();
  LocalState here;
  here.fingerprint = file->fingerprint;
  here.loaded.info = info_of(file->value);
  auto weights = load_weights(file->value, run.module, options);
  if (!weights) return weights.error();
  here.loaded.prefix = std::move(weights->named.change);
  here.loaded.weights_key = std::move(weights->key);
  here.loaded.other_weights = std::move(weights->others);
  here.loaded.world_size = field_or<std::int64_t>(file->value, "world_size", 0);
  if (options.weights_only) return here;
  const auto optimizer = field_value(file->value, "optimizer");
  if (optimizer && is_by_number(**optimizer)) {
    auto loaded = load_optimizer_state(**optimizer, run.optimizer);
    if (!loaded) return Error(loaded.error().code(), "optimizer: " + loaded.error().message());
    here.loaded.optimizer = true;
  }
  if (here.loaded.world_size != run.ranks.world_size()) return here;
  if (const auto rng = field_value(file->value, "rng")) {
    if (auto loaded = load_rng(**rng, run, here.loaded.rng); !loaded) return loaded.error();
  }
  if (const auto buckets = field_value(file->value, "buckets")) {
    here.layout = layout_of(**buckets);
    if (!here.layout)
      return Error(ErrorCode::kProtocol, "'buckets' is no list of lists of numbers");
  }
  return here;
}

Error named(const std::filesystem::path& path, const Error& error) {
  const std::string begin = fmt::format("load checkpoint {}: ", path.string());
  if (error.message().starts_with(begin)) return error;
  return {error.code(), begin + error.message()};
}

// LibTorch throws what it does not expect. The first sentence says what is wrong.
Result<LocalState> try_load_here(const std::filesystem::path& path, const CheckpointRun& run,
                                 const LoadOptions& options) {
  try {
    auto here = load_here(path, run, options);
    if (!here) return named(path, here.error());
    return here;
  } catch (const c10::Error& error) {
    const std::string_view what = error.what_without_backtrace();
    return named(path, {ErrorCode::kProtocol, std::string(what.substr(0, what.find('\n')))});
  }
}

// All ranks go on, or none. Each says whether it has loaded the file, and which.
Result<void> agree(const std::filesystem::path& path, Collective& ranks,
                   const Result<LocalState>& here) {
  const std::array<std::uint64_t, 2> mine{here ? 1U : 0U, here ? here->fingerprint : 0};
  const auto all = ranks.all_gather_bytes(std::as_bytes(std::span(mine)));
  if (!here) return here.error();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::array<std::uint64_t, 2> theirs{};
    std::memcpy(theirs.data(), all[rank].data(), std::min(sizeof theirs, all[rank].size()));
    if (theirs[0] == 0) {
      return named(path, {ErrorCode::kRejected,
                          fmt::format("rank {} cannot load it: its output says why", rank)});
    }
    if (theirs[1] != mine[1]) {
      return named(path, {ErrorCode::kRejected,
                          fmt::format("rank {} has another file of that name than rank {}", rank,
                                      ranks.rank())});
    }
  }
  return {};
}

}  // namespace

void worker::throw_checkpoint_error(const Error& error) {
  throw CheckpointError(error.message(), error.code() == ErrorCode::kSystem);
}

std::string describe(const LoadedCheckpoint& loaded) {
  std::string names = describe(loaded.prefix);
  if (loaded.other_weights.empty()) return names;
  std::string choice = fmt::format("weights of '{}', not of '{}'", printable(loaded.weights_key),
                                   fmt::join(loaded.other_weights, "', '"));
  return names.empty() ? choice : choice + ", " + names;
}

std::optional<PickleOutput> worker::pickled_run(const std::filesystem::path& path,
                                                const CheckpointRun& run,
                                                const CheckpointInfo& info) {
  auto rng = gather_rng(run.ranks);
  if (run.ranks.rank() != 0) return std::nullopt;
  const auto value = rng ? checkpoint_value(run, info, std::move(*rng)) : rng.error();
  auto pickled = value ? write_pickle(*value) : value.error();
  if (!pickled)
    throw_checkpoint_error(
        {pickled.error().code(),
         fmt::format("save checkpoint {}: {}", path.string(), pickled.error().message())});
  return std::move(*pickled);
}

void save_checkpoint(const std::filesystem::path& path, const CheckpointRun& run,
                     const CheckpointInfo& info, const SaveOptions& options) {
  const auto pickled = pickled_run(path, run, info);
  if (!pickled) return;
  const auto written = write_pickled_file(path, *pickled, options);
  if (!written) throw_checkpoint_error(written.error());
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, const CheckpointRun& run,
                                 const LoadOptions& options) {
  auto here = try_load_here(path, run, options);
  if (auto agreed = agree(path, run.ranks, here); !agreed) throw_checkpoint_error(agreed.error());
  // The file is the same for all, so all restore the buckets or none.
  if (run.parallel != nullptr && here->layout) {
    here->loaded.buckets = run.parallel->restore_buckets(*here->layout);
  }
  return std::move(here->loaded);
}

void check_checkpoint_path(const std::filesystem::path& path) {
  const auto replaceable = check_replaceable(path);
  if (!replaceable) throw_checkpoint_error(replaceable.error());
}

CheckpointInfo read_checkpoint_info(const std::filesystem::path& path) {
  const auto file = read_checkpoint_file(path, Objects::kPassOver);
  if (!file) throw_checkpoint_error(file.error());
  return info_of(file->value);
}

}  // namespace ddprun
