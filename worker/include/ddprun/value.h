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
  ElementType type = ElementType::kFloat;             // of each element
  std::shared_ptr<const worker::StorageBytes> bytes;  // in memory, or in an open file
};

// A strided tensor: counts are of elements. All of its elements lie in the storage.
struct TensorValue {
  std::shared_ptr<const Storage> storage;  // not null
  std::int64_t offset = 0;                 // of its first element in the storage
  std::vector<std::int64_t> sizes;         // one for each dimension
  std::vector<std::int64_t> strides;       // as many as sizes
  bool requires_grad = false;              // as Python's attribute
};

// One value of the tree. It owns what is below it, but for the bytes of storages.
class Value {
 public:
  // A key of a dict: an int or a str.
  using Key = std::variant<std::int64_t, std::string>;
  struct Entry;
  // A list.
  struct List {
    std::vector<Value> items;  // in order
  };
  // A tuple.
  struct Tuple {
    std::vector<Value> items;  // in order
  };
  // An object of a class that is none of these: its bytes are passed over, and nothing is called.
  // Only the reader that was told to pass over objects makes one.
  struct Object {
    std::shared_ptr<const std::string> reason;  // why it is not read: one line
  };
  // A dict. Entries stand in the order in which the keys were set; each key is there once.
  struct Dict {
    std::vector<Entry> entries;  // keys with their values
    bool ordered = false;        // Python's OrderedDict

    // Returns the value of a key; valid until the next set(). It looks at one key after the other.
    const Value* find(const Key& key) const;  // null: not there
    // Replaces the value of a key, or adds both behind the others.
    void set(Key key, Value value);
  };

  Value() = default;  // None
  // Makes a bool of Python.
  explicit Value(bool value);
  // Makes an int of Python.
  explicit Value(std::int64_t value);
  // Makes an int of Python.
  explicit Value(int value);
  // Makes a float of Python.
  explicit Value(double value);
  // Makes a str of Python.
  explicit Value(std::string value);
  // Makes a str of Python.
  explicit Value(const char* value);
  // Makes a list of Python.
  explicit Value(List value);
  // Makes a tuple of Python.
  explicit Value(Tuple value);
  // Makes a dict of Python.
  explicit Value(Dict value);
  // Makes a torch.Tensor of Python.
  explicit Value(TensorValue value);
  // Makes an object that was passed over.
  explicit Value(Object value);

  // Says whether it is None.
  bool none() const { return std::holds_alternative<std::monostate>(held_); }
  // Returns the value inside; null where it is of another type. `Type`: one of bool, std::int64_t,
  // double, std::string, List, Tuple, Dict, TensorValue, Object.
  template <typename Type>
  const Type* as() const {
    return std::get_if<Type>(&held_);
  }
  // Returns the same, to be changed.
  template <typename Type>
  Type* as() {
    return std::get_if<Type>(&held_);
  }
  // Returns the type for messages: "None", "bool", "int", "float", "str", "list", "tuple", "dict",
  // "tensor", "object".
  std::string_view type_name() const;

  // Returns the items of a list or a tuple; null for others.
  const std::vector<Value>* items() const;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Tuple, Dict,
               TensorValue, Object>
      held_;
};

// A key of a dict with its value.
struct Value::Entry {
  Key key;      // each once in its dict
  Value value;  // of any type
};

// They come after Entry, since clang looks into it.
inline Value::Value(bool value) : held_(value) {}
inline Value::Value(std::int64_t value) : held_(value) {}
inline Value::Value(int value) : held_(std::int64_t{value}) {}
inline Value::Value(double value) : held_(value) {}
inline Value::Value(std::string value) : held_(std::move(value)) {}
inline Value::Value(const char* value) : held_(std::string(value)) {}
inline Value::Value(List value) : held_(std::move(value)) {}
inline Value::Value(Tuple value) : held_(std::move(value)) {}
inline Value::Value(Dict value) : held_(std::move(value)) {}
inline Value::Value(TensorValue value) : held_(std::move(value)) {}
inline Value::Value(Object value) : held_(std::move(value)) {}

}  // namespace ddprun
