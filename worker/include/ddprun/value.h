// The content of a checkpoint: a tree of plain values. They are Python's None, bool, int, float,
// str, list, tuple, dict and torch.Tensor. Nothing in it can be executed. A tensor is described
// here: its elements lie in a storage, which several tensors may share. Plain values; no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ddprun::worker {
class StorageBytes;
}  // namespace ddprun::worker

namespace ddprun {

// The dtypes that a storage can have: those for which Python's torch has a `<Name>Storage`.
enum class ElementType : std::uint8_t {
  kFloat,
  kDouble,
  kHalf,
  kBFloat16,
  kLong,
  kInt,
  kShort,
  kChar,
  kByte,
  kBool,
  kComplexFloat,
  kComplexDouble,
};
// The elements of one or several tensors.
struct Storage {
  ElementType type = ElementType::kFloat;
  std::shared_ptr<const worker::StorageBytes> bytes;  // in memory, or in an open file
};

// A strided tensor: counts are of elements. All of its elements lie in the storage.
struct TensorValue {
  std::shared_ptr<const Storage> storage;  // not null
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // as many as sizes
  bool requires_grad = false;
};

class Value {
 public:
  using Key = std::variant<std::int64_t, std::string>;
  struct Entry;
  struct List {
    std::vector<Value> items;
  };
  struct Tuple {
    std::vector<Value> items;
  };
  // An object of a class that is none of these: its bytes are passed over, and nothing is called.
  // Only the reader that was told to pass over objects makes one.
  struct Object {
    std::shared_ptr<const std::string> reason;  // why it is not read: one line
  };
  // In the order in which the keys were set; each is there once.
  struct Dict {
    std::vector<Entry> entries;
    bool ordered = false;  // Python's OrderedDict

    // A dict has few keys where this is used: it looks at one after the other.
    const Value* find(const Key& key) const;  // null: not there
    void set(Key key, Value value);
  };

  Value() = default;  // None
  explicit Value(bool value) : held_(value) {}
  explicit Value(std::int64_t value) : held_(value) {}
  explicit Value(int value) : held_(std::int64_t{value}) {}
  explicit Value(double value) : held_(value) {}
  explicit Value(std::string value) : held_(std::move(value)) {}
  explicit Value(const char* value) : held_(std::string(value)) {}
  explicit Value(List value) : held_(std::move(value)) {}
  explicit Value(Tuple value) : held_(std::move(value)) {}
  explicit Value(Dict value) : held_(std::move(value)) {}
  explicit Value(TensorValue value) : held_(std::move(value)) {}
  explicit Value(Object value) : held_(std::move(value)) {}

  bool none() const { return std::holds_alternative<std::monostate>(held_); }
  // Null where the value is of another type. One of bool, std::int64_t, double, std::string, List,
  // Tuple, Dict, TensorValue, Object.
  template <typename Type>
  const Type* as() const {
    return std::get_if<Type>(&held_);
  }
  template <typename Type>
  Type* as() {
    return std::get_if<Type>(&held_);
  }
  // "None", "bool", "int", "float", "str", "list", "tuple", "dict", "tensor",
  // "object": for messages.
  std::string_view type_name() const;

  // The items of a list or a tuple; null for others.
  const std::vector<Value>* items() const;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Tuple, Dict,
               TensorValue, Object>
      held_;
};

struct Value::Entry {
  Key key;
  Value value;
};

}  // namespace ddprun
