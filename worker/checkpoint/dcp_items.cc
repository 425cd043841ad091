#include "worker/checkpoint/dcp_items.h"

#include <c10/util/Exception.h>
#include <ddprun/collective.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/gathered_texts.h"
#include "worker/checkpoint/module_values.h"
#include "worker/checkpoint/optimizer_values.h"
#include "worker/checkpoint/run_parts.h"
#include "worker/checkpoint/run_values.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

// In the order of ElementType.
constexpr std::array<const char*, kElementTypes> kDtypes{
    "float32", "float64", "float16", "bfloat16", "int64",     "int32",
    "int16",   "int8",    "uint8",   "bool",     "complex64", "complex128"};

// Some bytes of another storage.
class PartBytes : public StorageBytes {
 public:
  PartBytes(std::shared_ptr<const StorageBytes> whole, std::size_t begin, std::size_t size)
      : whole_(std::move(whole)), begin_(begin), size_(size) {}

  std::size_t size() const override { return size_; }
  Result<void> read(std::span<std::byte> into) const override {
    std::ranges::copy(memory(), into.begin());
    return {};
  }
  std::span<const std::byte> memory() const override {
    return whole_->memory().subspan(begin_, size_);
  }
  bool lasts() const override { return whole_->lasts(); }

 private:
  std::shared_ptr<const StorageBytes> whole_;
  std::size_t begin_, size_;
};

// The item of a parameter, or of a tensor of its state.
struct ItemName {
  std::string key;
  DcpPath path;
};

ItemName weight_name(const std::string& parameter) {
  return {"model." + parameter, {std::string("model"), parameter}};
}

ItemName state_name(const std::string& parameter, const std::string& of) {
  return {state_prefix(parameter) + of,
          {std::string("optim"), std::string("state"), parameter, of}};
}

// Collects items. The first error counts.
class Items {
 public:
  // Elements of a row that lies in memory at `tensor`'s begin. If the whole has none, each rank
  // says its shape.
  void add_part(const ItemName& name, const TensorValue& tensor, const DenseRange& range,
                std::int64_t place) {
    if (elements_of(range.sizes) == 0)
      return add_tensor(name, TensorValue{tensor.storage, 0, range.sizes, range.strides},
                        range.sizes, std::nullopt);
    const std::size_t element = bytes_of(tensor.storage->type);
    for (const BoxInRow& each : boxes_of(range)) {
      const auto first = static_cast<std::size_t>(tensor.offset + place + each.start);
      const auto count = static_cast<std::size_t>(elements_of(each.box.sizes));
      const auto storage = std::make_shared<const Storage>(Storage{
          tensor.storage->type,
          std::make_shared<PartBytes>(tensor.storage->bytes, first * element, count * element)});
      add_tensor(name, TensorValue{storage, 0, each.box.sizes, each.strides}, range.sizes,
                 each.box);
    }
  }

  // A tensor that this rank has as a whole. `tensor` must be dense.
  void add_whole(const ItemName& name, const TensorValue& tensor) {
    const auto range = whole_range(tensor.sizes, tensor.strides);
    if (range.end == 0) return add_tensor(name, tensor, tensor.sizes, std::nullopt);
    add_part(name, tensor, range, 0);
  }

  // Dicts are flattened, as DCP does.
  void add_value(const DcpPath& path, const Value& value) {
    if (const auto* dict = value.as<Value::Dict>()) {
      for (const auto& [key, item] : dict->entries) {
        DcpPath below = path;
        std::visit([&below](const auto& part) { below.emplace_back(part); }, key);
        add_value(below, item);
      }
      return;
    }
    ItemName name{key_of(path), path};
    if (const auto* tensor = value.as<TensorValue>();
        tensor != nullptr && is_dense(tensor->sizes, tensor->strides))
      return add_whole(name, *tensor);
    add(std::move(name), {}, {}, std::nullopt, value);
  }

  void fail(const Error& error) {
    if (!error_) error_ = error;
  }

  Result<std::vector<DcpItem>> take() {
    if (error_) return *error_;
    return std::move(items_);
  }

 private:
  static std::string key_of(const DcpPath& path) {
    std::string key;
    for (const auto& part : path) {
      if (!key.empty()) key += '.';
      key += std::visit([](const auto& each) { return fmt::format("{}", each); }, part);
    }
    return key;
  }

  void add_tensor(ItemName name, TensorValue tensor, std::vector<std::int64_t> sizes,
                  std::optional<Box> box) {
    const auto* const dtype = kDtypes.at(static_cast<std::size_t>(tensor.storage->type));
    tensor.requires_grad = false;
    add(std::move(name), dtype, std::move(sizes), std::move(box), Value(std::move(tensor)));
  }

  void add(ItemName name, std::string dtype, std::vector<std::int64_t> sizes,
           std::optional<Box> box, const Value& value) {
    const auto [known, added] = paths_.try_emplace(name.key, name.path);
    // A tensor has several pieces.
    if (!added && (known->second != name.path || !box))
      return fail({ErrorCode::kInvalidArgument,
                   fmt::format("two values have the key '{}', since a dot joins the keys of "
                               "dicts: give one of them another name",
                               printable(name.key))});
    DcpItem item{.key = std::move(name.key),
                 .path = std::move(name.path),
                 .dtype = std::move(dtype),
                 .sizes = std::move(sizes),
                 .box = std::move(box),
                 .pickled = {}};
    if (item.box || item.dtype.empty()) {
      auto pickled = write_pickle(value);
      if (!pickled)
        return fail({pickled.error().code(), item.key + ": " + pickled.error().message()});
      item.pickled = std::move(*pickled);
    }
    items_.push_back(std::move(item));
  }

  std::vector<DcpItem> items_;
  std::map<std::string, DcpPath> paths_;  // by key
  std::optional<Error> error_;
};

// By row: the group of an optimizer that has it, and the rank that writes it.
struct RowOwner {
  std::optional<std::int64_t> group;
  int rank = 0;
};

// By rank: the group of each row in its optimizer, or None.
Result<std::vector<Value>> groups_of_ranks(const Result<std::vector<Row>>& rows,
                                           Collective& ranks) {
  Result<std::string> mine = std::string();
  if (rows) {
    Value::List groups;
    for (const Row& row : *rows) groups.items.push_back(row.group ? Value(*row.group) : Value());
    mine = std::move(write_pickle(Value(std::move(groups)))->bytes);
  } else {
    mine = rows.error();
  }
  const auto texts = gather_results(mine, ranks);
  if (!texts) return texts.error();
  std::vector<Value> groups;
  for (const std::string& text : *texts) {
    auto read = read_pickle(std::as_bytes(std::span(text)), nullptr);
    if (!read || read->items()->size() != rows->size())
      return Error(ErrorCode::kInvalidArgument, "the ranks have unlike modules");
    groups.push_back(std::move(*read));
  }
  return groups;
}

// `bytes`: what each rank writes so far.
RowOwner owner_of(const std::vector<Value>& groups, std::size_t row,
                  const std::vector<std::size_t>& bytes) {
  std::optional<std::int64_t> group;
  std::vector<std::size_t> all, with_it;  // ranks
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    all.push_back(rank);
    const auto* own = (*groups[rank].items())[row].as<std::int64_t>();
    if (own == nullptr) continue;
    with_it.push_back(rank);
    group = *own;
  }
  const auto best = std::ranges::min(with_it.empty() ? all : with_it, {},
                                     [&bytes](std::size_t rank) { return bytes[rank]; });
  return {group, static_cast<int>(best)};
}

// Ranks of ShardedParallel have parts of their own. Elsewhere a rank writes a row that its
// optimizer has. If several have it, it is the one with the fewest bytes so far.
Result<std::vector<RowOwner>> owners_of(const Result<std::vector<Row>>& rows, Collective& ranks) {
  const auto groups = groups_of_ranks(rows, ranks);
  if (!groups) return groups.error();
  std::vector<RowOwner> owners;
  std::vector<std::size_t> bytes(groups->size());
  for (std::size_t i = 0; i < rows->size(); ++i) {
    owners.push_back(owner_of(*groups, i, bytes));
    bytes[static_cast<std::size_t>(owners.back().rank)] += (*rows)[i].tensor.nbytes();
  }
  return owners;
}

void add_weights(const Row& row, Items& items) {
  const auto value = tensor_value(in_memory_order(row.tensor));
  if (!value) return items.fail(value.error());
  for (const ParameterPart& part : row.parts)
    items.add_part(weight_name(part.name), *value->as<TensorValue>(), part.range, part.place);
}

// One rank says a shard's count of steps: the one with the parameter's first element.
bool says_steps(const ParameterPart& part, const CheckpointRun& run) {
  if (run.sharded == nullptr) return true;
  if (elements_of(part.range.sizes) == 0) return run.ranks.rank() == 0;
  return part.range.begin == 0 && part.range.end > 0;
}

// `tensor`: the row's state named `of`.
void add_part_state(const ParameterPart& part, const CheckpointRun& run, const std::string& of,
                    const TensorValue& tensor, Items& items) {
  const auto name = state_name(part.name, of);
  if (of == "step") {
    if (says_steps(part, run)) items.add_whole(name, tensor);
  } else if (run.sharded != nullptr) {
    items.add_part(name, tensor, part.range, part.place);
  } else if (is_dense(tensor.sizes, tensor.strides)) {
    items.add_whole(name, tensor);
  } else {
    items.fail({ErrorCode::kInvalidArgument, name.key + " has gaps in memory"});
  }
}

// `state`: of the row, as Python's optimizers have it.
void add_state(const Row& row, const CheckpointRun& run, const Value& state, Items& items) {
  for (const auto& [key, value] : state.as<Value::Dict>()->entries) {
    for (const ParameterPart& part : row.parts) {
      if (part.again) continue;
      add_part_state(part, run, std::get<std::string>(key), *value.as<TensorValue>(), items);
    }
  }
}

Value::List names_in_group(const std::vector<Row>& rows, const std::vector<RowOwner>& owners,
                           std::int64_t group) {
  Value::List names;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (owners[row].group != group) continue;
    for (const ParameterPart& part : rows[row].parts)
      if (!part.again) names.items.emplace_back(part.name);
  }
  return names;
}

// The options of groups, with the names of all of their parameters: rank 0's.
void add_groups(const Value& optimizer, const std::vector<Row>& rows,
                const std::vector<RowOwner>& owners, Items& items) {
  std::int64_t number = 0;
  for (Value group : *(*field_value(optimizer, "param_groups"))->items()) {
    auto& options = *group.as<Value::Dict>();
    options.set("params", Value(names_in_group(rows, owners, number)));
    for (const auto& [key, value] : options.entries)
      items.add_value(
          {std::string("optim"), std::string("param_groups"), number, std::get<std::string>(key)},
          value);
    ++number;
  }
}

void add_optimizer(const CheckpointRun& run, const std::vector<Row>& rows,
                   const std::vector<RowOwner>& owners, Items& items) {
  const auto optimizer = optimizer_state(run.optimizer);
  if (!optimizer) return items.fail(optimizer.error());
  std::map<const at::TensorImpl*, std::size_t> places;
  for (std::size_t i = 0; i < rows.size(); ++i) places[rows[i].tensor.unsafeGetTensorImpl()] = i;
  const auto& states = *(*field_value(*optimizer, "state"))->as<Value::Dict>();
  std::int64_t index = 0;
  for (const auto& group : run.optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const Value* state = states.find(index++);
      const std::size_t row = places.at(tensor.unsafeGetTensorImpl());
      const bool is_mine = run.sharded != nullptr || owners[row].rank == run.ranks.rank();
      if (state != nullptr && is_mine) add_state(rows[row], run, *state, items);
    }
  }
  if (run.ranks.rank() == 0) add_groups(*optimizer, rows, owners, items);
}

void add_run(const CheckpointRun& run, const CheckpointInfo& info, Items& items) {
  const auto rng = own_rng();
  if (!rng) return items.fail(rng.error());
  items.add_value({std::string("rng"), static_cast<std::int64_t>(run.ranks.rank())}, *rng);
  if (run.ranks.rank() != 0) return;
  for (const auto& [key, value] : info_values(run, info).entries)
    items.add_value({std::get<std::string>(key)}, value);
  for (const auto& item : run.module.named_buffers()) {
    const auto value = tensor_value(item.value().contiguous());
    if (!value) return items.fail(value.error());
    items.add_whole(weight_name(item.key()), *value->as<TensorValue>());
  }
}

Result<std::vector<DcpItem>> make_items(const CheckpointRun& run, const CheckpointInfo& info,
                                        const std::vector<Row>& rows,
                                        const std::vector<RowOwner>& owners) {
  Items items;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (run.sharded != nullptr || owners[i].rank == run.ranks.rank()) add_weights(rows[i], items);
  }
  add_optimizer(run, rows, owners, items);
  add_run(run, info, items);
  return items.take();
}

// LibTorch throws what it does not expect, and other ranks wait for what this one says. The first
// sentence says what is wrong.
template <typename Make>
auto without_throw(const Make& make) -> decltype(make()) {
  const auto fail = [](std::string_view what) {
    return Error(ErrorCode::kInvalidArgument, std::string(what.substr(0, what.find('\n'))));
  };
  try {
    return make();
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace

std::vector<DcpItem> dcp_items(const std::filesystem::path& folder, const CheckpointRun& run,
                               const CheckpointInfo& info) {
  const auto fail = [&folder](const Error& error) {
    throw_checkpoint_error(
        {error.code(), fmt::format("save checkpoint {}: {}", folder.string(), error.message())});
  };
  const auto rows = without_throw([&] { return rows_of(run); });
  const auto owners = owners_of(rows, run.ranks);
  if (!owners) fail(owners.error());
  auto items = without_throw([&] { return make_items(run, info, *rows, *owners); });
  const auto agreed =
      gather_results(items ? Result<std::string>(std::string()) : items.error(), run.ranks);
  if (!agreed) fail(agreed.error());
  return std::move(*items);
}

}  // namespace ddprun::worker
