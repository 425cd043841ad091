#include "worker/checkpoint/module_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ddprun/checkpoint.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

// In the order of ElementType.
constexpr std::array<at::ScalarType, kElementTypes> kScalarTypes{
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,         at::kInt,
    at::kShort, at::kChar,   at::kByte, at::kBool,     at::kComplexFloat, at::kComplexDouble};

std::optional<ElementType> element_type(at::ScalarType type) {
  const auto* const found = std::ranges::find(kScalarTypes, type);
  if (found == kScalarTypes.end()) return std::nullopt;
  return static_cast<ElementType>(found - kScalarTypes.begin());
}

at::ScalarType scalar_type(ElementType type) {
  return kScalarTypes.at(static_cast<std::size_t>(type));
}

// Keeps a tensor's storage alive.
class TensorBytes : public StorageBytes {
 public:
  TensorBytes(at::Tensor tensor, bool is_copy) : tensor_(std::move(tensor)), is_copy_(is_copy) {}

  std::size_t size() const override { return tensor_.storage().nbytes(); }
  Result<void> read(std::span<std::byte> into) const override {
    std::ranges::copy(memory(), into.begin());
    return {};
  }
  std::span<const std::byte> memory() const override {
    return {static_cast<const std::byte*>(tensor_.storage().data()), size()};
  }
  bool lasts() const override { return is_copy_; }

 private:
  at::Tensor tensor_;
  bool is_copy_;
};

struct NamedValue {
  std::string name;
  at::Tensor tensor;
};

// The order is that of Python's state_dict(): a module's own parameters, its own buffers, then its
// children. A tensor with two names comes twice.
void collect(const torch::nn::Module& module, const std::string& prefix,
             std::vector<NamedValue>& into) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    into.push_back({prefix + item.key(), item.value().detach()});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    into.push_back({prefix + item.key(), item.value().detach()});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", into);
  }
}

std::vector<NamedValue> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedValue> tensors;
  collect(module, "", tensors);
  return tensors;
}

Result<void> check_alike(const std::string& name, const TensorValue& value,
                         const at::Tensor& tensor) {
  if (at::isComplexType(scalar_type(value.storage->type)) != tensor.is_complex()) {
    return Error(ErrorCode::kProtocol,
                 fmt::format("'{}': one of file and module is complex, the other is not", name));
  }
  return {};
}

// Returns whether the value's elements are the whole storage, one after the other.
bool is_whole(const TensorValue& value) {
  std::int64_t count = 1;
  for (std::size_t i = value.sizes.size(); i-- > 0;) {
    if (value.sizes[i] != 1 && value.strides[i] != count) return false;
    count *= value.sizes[i];
  }
  return value.offset == 0 &&
         std::cmp_equal(count, value.storage->bytes->size() / bytes_of(value.storage->type));
}

struct OwnTensors {
  std::map<std::string, at::Tensor> tensors;
  WeightSlots slots;
};

OwnTensors slots_of(const torch::nn::Module& module) {
  OwnTensors own;
  for (auto& [name, tensor] : tensors_of(module)) {
    // Two names of one tensor have two at::Tensor here, of one memory; an empty one has none.
    const void* const memory = tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
    own.slots.emplace(name, WeightSlot{tensor.sizes().vec(), memory});
    own.tensors.emplace(name, tensor);
  }
  return own;
}

Result<void> copy_into(const std::map<std::string, at::Tensor>& ours, const NamedWeights& weights) {
  for (const auto& [name, value] : weights.tensors) {
    if (auto alike = check_alike(name, *value, ours.at(name)); !alike) return alike;
  }
  TensorReader reader;
  for (const auto& [name, value] : weights.tensors) {
    if (auto read = reader.read_into(*value, ours.at(name)); !read) return read;
  }
  return {};
}

}  // namespace

Result<Value> tensor_value(const at::Tensor& tensor) {
  const auto type = element_type(tensor.scalar_type());
  if (tensor.layout() != at::kStrided || !type) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a tensor of type {} cannot be saved, only dense ones of the dtypes "
                             "that have a storage in Python",
                             tensor.toString()));
  }
  at::Tensor here = tensor.detach().resolve_conj().resolve_neg().cpu();
  if (here.storage().nbytes() % bytes_of(*type) != 0) here = here.clone();
  const bool is_copy = !here.is_alias_of(tensor);
  const auto storage =
      std::make_shared<const Storage>(Storage{*type, std::make_shared<TensorBytes>(here, is_copy)});
  return Value(TensorValue{storage, here.storage_offset(), here.sizes().vec(), here.strides().vec(),
                           tensor.requires_grad() && tensor.is_leaf()});
}

Result<at::Tensor> TensorReader::read(const TensorValue& value) {
  at::Tensor& flat = storages_[value.storage.get()];
  if (!flat.defined()) {
    const StorageBytes& bytes = *value.storage->bytes;
    const auto count = bytes.size() / bytes_of(value.storage->type);
    const at::Tensor read =
        at::empty({static_cast<std::int64_t>(count)}, scalar_type(value.storage->type));
    auto done = bytes.read({static_cast<std::byte*>(read.mutable_data_ptr()), bytes.size()});
    if (!done) return done.error();
    flat = read;
  }
  return flat.as_strided(value.sizes, value.strides, value.offset);
}

Result<void> TensorReader::read_into(const TensorValue& value, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  if (target.is_cpu() && target.is_contiguous() && is_whole(value) &&
      target.scalar_type() == scalar_type(value.storage->type)) {
    return value.storage->bytes->read(
        {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()});
  }
  const auto read_here = read(value);
  if (!read_here) return read_here.error();
  target.copy_(*read_here);
  return {};
}

Result<Value> state_dict(const torch::nn::Module& module) {
  Value::Dict state{.entries = {}, .ordered = true};
  for (const auto& [name, tensor] : tensors_of(module)) {
    auto value = tensor_value(tensor);
    if (!value) return Error(value.error().code(), name + ": " + value.error().message());
    state.entries.push_back({name, std::move(*value)});
  }
  return Value(std::move(state));
}

Result<FoundWeights> load_weights(const Value& file, torch::nn::Module& module,
                                  const LoadOptions& options) {
  auto [ours, slots] = slots_of(module);
  auto found = find_weights(file, slots, options);
  if (!found) return found;
  if (auto copied = copy_into(ours, found->named); !copied) return copied.error();
  return found;
}

Result<PrefixChange> load_state_dict(const Value& state, torch::nn::Module& module,
                                     const LoadOptions& options) {
  const auto* dict = state.as<Value::Dict>();
  if (dict == nullptr) return Error(ErrorCode::kProtocol, "the state_dict is no dict");
  const auto file = tensors_of(*dict);
  if (!file) return file.error();
  auto [ours, slots] = slots_of(module);
  const auto named = match_names(*file, slots, options);
  if (!named) return named.error();
  if (auto copied = copy_into(ours, *named); !copied) return copied.error();
  return named->change;
}

}  // namespace ddprun::worker

namespace ddprun {

std::uint64_t checksum(const torch::nn::Module& module) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  // With contiguous() equal values give equal bytes, whatever the strides in memory are.
  const auto fold = [&hash](const at::Tensor& tensor) {
    const at::Tensor flat = tensor.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (std::size_t i = 0; i < flat.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001B3U;
  };
  for (const at::Tensor& parameter : module.parameters()) fold(parameter);
  for (const at::Tensor& buffer : module.buffers()) fold(buffer);
  return hash;
}

}  // namespace ddprun
