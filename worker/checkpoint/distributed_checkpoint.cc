#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>
#include <ddprun/sharded_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/checkpoint/dcp_folder.h"
#include "worker/checkpoint/dcp_items.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/gathered_texts.h"
#include "worker/checkpoint/module_values.h"
#include "worker/checkpoint/optimizer_values.h"
#include "worker/checkpoint/run_parts.h"
#include "worker/checkpoint/run_values.h"

namespace ddprun {

using namespace worker;

namespace {

// Fills a run from a folder: each element from the piece that has it.
class FolderLoader {
 public:
  FolderLoader(const DcpFolder& folder, const CheckpointRun& run, const std::vector<Row>& rows)
      : folder_(folder), run_(run), rows_(rows) {}

  Result<void> load_weights() {
    for (const Row& row : rows_) {
      for (const ParameterPart& part : row.parts) {
        if (part.again) continue;
        if (auto filled = fill("model." + part.name, row.tensor, part); !filled) return filled;
      }
    }
    for (const auto& item : run_.module.named_buffers()) {
      if (auto filled = load_buffer("model." + item.key(), item.value()); !filled) return filled;
    }
    return {};
  }

  // Whether the folder has it is what the result says.
  Result<bool> load_optimizer() {
    if (!has_key_from("optim.param_groups.")) return false;
    Value::Dict states;
    Value::List groups;
    std::int64_t index = 0;
    for (std::size_t i = 0; i < run_.optimizer.param_groups().size(); ++i) {
      auto options = read_group(i);
      if (!options) return options.error();
      Value::List indices;
      for (const at::Tensor& tensor : run_.optimizer.param_groups()[i].params()) {
        auto state = read_state(row_of(tensor));
        if (!state) return state.error();
        if (!state->entries.empty()) states.set(index, Value(std::move(*state)));
        indices.items.emplace_back(index++);
      }
      options->set("params", Value(std::move(indices)));
      groups.items.emplace_back(std::move(*options));
    }
    Value::Dict whole;
    whole.set("state", Value(std::move(states)));
    whole.set("param_groups", Value(std::move(groups)));
    auto loaded = load_optimizer_state(Value(std::move(whole)), run_.optimizer);
    if (!loaded) return Error(loaded.error().code(), "optimizer: " + loaded.error().message());
    return true;
  }

  // The program's words, the number of ranks and the buckets.
  Result<Value> read_info() {
    Value whole{Value::Dict{}};
    for (const auto& [key, bytes] : folder_.metadata().values) {
      const DcpPath path = path_of(key);
      if (!is_info(path)) continue;
      auto value = folder_.read(bytes);
      if (!value) return value.error();
      put(whole, path, std::move(*value));
    }
    for (const auto& [key, tensor] : folder_.metadata().tensors) {
      const DcpPath path = path_of(key);
      if (!is_info(path) || tensor.chunks.size() != 1) continue;
      auto value = folder_.read(tensor.chunks.front().bytes);
      if (!value) return value.error();
      put(whole, path, std::move(*value));
    }
    return whole;
  }

  Result<bool> load_rng() {
    const auto found = folder_.metadata().tensors.find(fmt::format("rng.{}", run_.ranks.rank()));
    if (found == folder_.metadata().tensors.end() || found->second.chunks.size() != 1) return false;
    const auto value = folder_.read(found->second.chunks.front().bytes);
    if (!value) return value.error();
    if (auto loaded = load_own_rng(*value); !loaded) return loaded.error();
    return true;
  }

 private:
  static ParameterPart whole_part(const at::Tensor& tensor) {
    return {"", whole_range(tensor.sizes().vec(), tensor.strides().vec()), 0, false};
  }

  Result<void> load_buffer(const std::string& key, const at::Tensor& buffer) {
    const at::Tensor whole = buffer.contiguous();
    auto filled = fill(key, whole, whole_part(whole));
    if (filled && !whole.is_same(buffer)) buffer.copy_(whole);
    return filled;
  }

  bool has_key_from(const std::string& prefix) const {
    const auto& values = folder_.metadata().values;
    const auto found = values.lower_bound(prefix);
    return found != values.end() && found->first.starts_with(prefix);
  }

  DcpPath path_of(const std::string& key) const {
    const auto found = folder_.metadata().paths.find(key);
    return found == folder_.metadata().paths.end() || found->second.empty() ? DcpPath{key}
                                                                            : found->second;
  }

  static bool is_info(const DcpPath& path) {
    const auto* first = std::get_if<std::string>(&path.front());
    if (first == nullptr) return false;
    for (const char* ours :
         {"epoch", "arch", "best_prec1", "best_acc1", "sampler", "world_size", "buckets", "extra"})
      if (*first == ours) return true;
    return false;
  }

  static void put(Value& whole, const DcpPath& path, Value value) {
    Value* at = &whole;
    for (const auto& part : path) {
      if (at->as<Value::Dict>() == nullptr) *at = Value(Value::Dict{});
      auto& dict = *at->as<Value::Dict>();
      if (dict.find(part) == nullptr) dict.set(part, Value());
      at = const_cast<Value*>(dict.find(part));
    }
    *at = std::move(value);
  }

  const Row& row_of(const at::Tensor& tensor) const {
    for (const Row& row : rows_)
      if (row.tensor.is_same(tensor)) return row;
    throw std::logic_error("a tensor is in no row");  // rows_of() has looked
  }

  // Fills the elements of a part from the pieces that have them. `into` has the row's layout.
  Result<void> fill(const std::string& key, const at::Tensor& into, const ParameterPart& part) {
    const auto found = folder_.metadata().tensors.find(key);
    if (found == folder_.metadata().tensors.end())
      return refused(fmt::format("it has no tensor '{}'", key));
    if (found->second.sizes != part.range.sizes)
      return refused(fmt::format("'{}' has the shape [{}], the run's has [{}]", key,
                                 fmt::join(found->second.sizes, ", "),
                                 fmt::join(part.range.sizes, ", ")));
    const auto boxes = boxes_of(part.range);
    const at::Tensor row = in_memory_order(into);
    std::int64_t filled = 0;
    for (const DcpChunk& chunk : found->second.chunks) {
      auto copied = copy_chunk(key, chunk, boxes, row, part.place);
      if (!copied) return copied.error();
      filled += *copied;
    }
    if (filled == part.range.end - part.range.begin) return {};
    return refused(fmt::format("the pieces of '{}' have {} of the {} elements that are needed", key,
                               filled, part.range.end - part.range.begin));
  }

  // Returns how many elements it has copied.
  Result<std::int64_t> copy_chunk(const std::string& key, const DcpChunk& chunk,
                                  const std::vector<BoxInRow>& boxes, const at::Tensor& row,
                                  std::int64_t place) {
    std::int64_t copied = 0;
    std::optional<Value> value;
    TensorReader reader;
    for (const BoxInRow& each : boxes) {
      const auto common = common_box(each.box, chunk.box);
      if (!common) continue;
      if (!value) {
        auto read = read_tensor(key, chunk);
        if (!read) return read.error();
        value = std::move(*read);
      }
      const auto& tensor = *value->as<TensorValue>();
      const at::Tensor target =
          row.as_strided(each.box.sizes, each.strides, row.storage_offset() + place + each.start);
      Result<void> done;
      if (*common == chunk.box && *common == each.box) {
        done = reader.read_into(tensor, target);
      } else if (const auto whole = reader.read(tensor); whole) {
        narrowed(target, *common, each.box).copy_(narrowed(*whole, *common, chunk.box));
      } else {
        done = whole.error();
      }
      if (!done) return in_file(chunk, key, done.error());
      copied += elements_of(common->sizes);
    }
    return copied;
  }

  Error in_file(const DcpChunk& chunk, const std::string& key, const Error& error) const {
    return {error.code(),
            fmt::format("load checkpoint {}: '{}': {}", folder_.path_of(chunk.bytes.file).string(),
                        printable(key), error.message())};
  }

  Result<Value> read_tensor(const std::string& key, const DcpChunk& chunk) {
    auto value = folder_.read(chunk.bytes);
    if (!value) return value;
    const auto* tensor = value->as<TensorValue>();
    if (tensor == nullptr || tensor->sizes != chunk.box.sizes)
      return in_file(chunk, key, refused("another value is there than the .metadata says"));
    return value;
  }

  // The elements of `common` in a tensor that has those of `box`.
  static at::Tensor narrowed(at::Tensor tensor, const Box& common, const Box& box) {
    for (std::size_t i = 0; i < box.sizes.size(); ++i)
      tensor = tensor.narrow(static_cast<std::int64_t>(i), common.offsets[i] - box.offsets[i],
                             common.sizes[i]);
    return tensor;
  }

  Result<Value::Dict> read_group(std::size_t group) {
    const std::string prefix = group_prefix(group);
    const auto& values = folder_.metadata().values;
    Value::Dict options;
    for (auto it = values.lower_bound(prefix); it != values.end() && it->first.starts_with(prefix);
         ++it) {
      if (it->first == prefix + "params") continue;
      auto value = folder_.read(it->second);
      if (!value) return value.error();
      options.set(it->first.substr(prefix.size()), std::move(*value));
    }
    return options;
  }

  // The names of a parameter's state: "exp_avg". Empty before its first step.
  std::set<std::string> state_names(const std::string& parameter) const {
    const std::string prefix = state_prefix(parameter);
    const auto& tensors = folder_.metadata().tensors;
    std::set<std::string> names;
    for (auto it = tensors.lower_bound(prefix);
         it != tensors.end() && it->first.starts_with(prefix); ++it) {
      const std::string name = it->first.substr(prefix.size());
      // "a.exp_avg" is of the parameter "<this one>.a".
      if (name.find('.') == std::string::npos) names.insert(name);
    }
    return names;
  }

  // All parts of a row have the same state. If the folder lacks some of it, an error names that.
  Result<Value::Dict> read_state(const Row& row) {
    std::set<std::string> names;
    for (const ParameterPart& part : row.parts) names.merge(state_names(part.name));
    Value::Dict state;
    for (const std::string& name : names) {
      auto value = name == "step" ? read_steps(row) : read_row(row, name);
      if (!value) return value.error();
      state.set(name, std::move(*value));
    }
    return state;
  }

  // A shard has one count of steps for all of its parameters.
  Result<Value> read_steps(const Row& row) {
    std::optional<at::Tensor> steps;
    for (const ParameterPart& part : row.parts) {
      if (part.again) continue;
      at::Tensor own = at::empty({}, at::kFloat);
      auto filled = fill(state_prefix(part.name) + "step", own, whole_part(own));
      if (!filled) return filled.error();
      if (steps && !steps->equal(own))
        return refused(fmt::format("'{}' has made another number of steps than '{}' of its unit",
                                   part.name, row.parts.front().name));
      steps = own;
    }
    return tensor_value(*steps);
  }

  Result<Value> read_row(const Row& row, const std::string& name) {
    const at::Tensor state = at::zeros_like(row.tensor).detach();
    for (const ParameterPart& part : row.parts) {
      if (part.again) continue;
      auto filled = fill(state_prefix(part.name) + name, state, part);
      if (!filled) return filled.error();
    }
    return tensor_value(state);
  }

  const DcpFolder& folder_;
  const CheckpointRun& run_;
  const std::vector<Row>& rows_;
};

struct LoadedHere {
  LoadedCheckpoint loaded;
  std::optional<Layout> layout;
};

Result<LoadedHere> load_here(const std::filesystem::path& path, const CheckpointRun& run) {
  const at::NoGradGuard no_grad;
  const auto rows = rows_of(run);
  if (!rows) return rows.error();
  const auto folder = DcpFolder::open(path);
  if (!folder) return folder.error();
  FolderLoader loader(*folder, run, *rows);
  const auto info = loader.read_info();
  if (!info) return info.error();
  LoadedHere here;
  here.loaded.info = info_of(*info);
  here.loaded.weights_key = "model";
  const auto world_size = field<std::int64_t>(*info, "world_size");
  here.loaded.world_size = world_size ? *world_size : 0;
  if (auto loaded = loader.load_weights(); !loaded) return loaded.error();
  const auto optimizer = loader.load_optimizer();
  if (!optimizer) return optimizer.error();
  here.loaded.optimizer = *optimizer;
  if (here.loaded.world_size != run.ranks.world_size()) return here;
  const auto rng = loader.load_rng();
  if (!rng) return rng.error();
  here.loaded.rng = *rng;
  if (const auto buckets = field_value(*info, "buckets")) here.layout = layout_of(**buckets);
  return here;
}

// LibTorch throws what it does not expect. The first sentence says what is wrong.
Result<LoadedHere> try_load_here(const std::filesystem::path& path, const CheckpointRun& run) {
  const auto fail = [](std::string_view what) {
    return Error(ErrorCode::kProtocol, std::string(what.substr(0, what.find('\n'))));
  };
  try {
    return load_here(path, run);
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(error.what());  // the other ranks wait for it
  }
}

}  // namespace

void save_distributed_checkpoint(const std::filesystem::path& folder, const CheckpointRun& run,
                                 const CheckpointInfo& info) {
  const auto saved = save_dcp(folder, dcp_items(folder, run, info), run.ranks);
  if (!saved) throw_checkpoint_error(saved.error());
}

LoadedCheckpoint load_distributed_checkpoint(const std::filesystem::path& folder,
                                             const CheckpointRun& run) {
  std::optional<Result<LoadedHere>> here;
  if (run.sharded != nullptr) {
    run.sharded->update([&] { here = try_load_here(folder, run); });
  } else {
    here = try_load_here(folder, run);
  }
  const std::string begin = fmt::format("load checkpoint {}", folder.string());
  Result<std::string> mine = std::string();
  if (!*here) {
    const Error& error = here->error();
    mine = error.message().starts_with(begin) ? error
                                              : Error(error.code(), begin + ": " + error.message());
  }
  if (const auto agreed = gather_results(mine, run.ranks); !agreed)
    throw_checkpoint_error(agreed.error());
  LoadedHere& loaded = **here;
  if (run.parallel != nullptr && loaded.layout)
    loaded.loaded.buckets = run.parallel->restore_buckets(*loaded.layout);
  return std::move(loaded.loaded);
}

void check_checkpoint_folder(const std::filesystem::path& folder) {
  const auto checked = check_dcp_folder(folder);
  if (!checked) throw_checkpoint_error(checked.error());
}

}  // namespace ddprun
