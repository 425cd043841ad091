#include <ddprun/value.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/storage.h"

namespace ddprun {

const Value* Value::Dict::find(const Key& key) const {
  const auto found = std::ranges::find(entries, key, &Entry::key);
  return found == entries.end() ? nullptr : &found->value;
}

void Value::Dict::set(Key key, Value value) {
  const auto found = std::ranges::find(entries, key, &Entry::key);
  if (found != entries.end()) {
    found->value = std::move(value);
    return;
  }
  entries.push_back({std::move(key), std::move(value)});
}

std::string_view Value::type_name() const {
  constexpr std::array<std::string_view, std::variant_size_v<decltype(held_)>> kNames{
      "None", "bool", "int", "float", "str", "list", "tuple", "dict", "tensor", "object"};
  return kNames.at(held_.index());
}

const std::vector<Value>* Value::items() const {
  if (const auto* list = as<List>()) return &list->items;
  if (const auto* tuple = as<Tuple>()) return &tuple->items;
  return nullptr;
}

}  // namespace ddprun

namespace ddprun::worker {
namespace {

struct ElementRow {
  std::size_t bytes;
  std::string_view storage;
};

constexpr std::array<ElementRow, kElementTypes> kElements{{{4, "FloatStorage"},
                                                           {8, "DoubleStorage"},
                                                           {2, "HalfStorage"},
                                                           {2, "BFloat16Storage"},
                                                           {8, "LongStorage"},
                                                           {4, "IntStorage"},
                                                           {2, "ShortStorage"},
                                                           {1, "CharStorage"},
                                                           {1, "ByteStorage"},
                                                           {1, "BoolStorage"},
                                                           {8, "ComplexFloatStorage"},
                                                           {16, "ComplexDoubleStorage"}}};

constexpr std::size_t kPrintableMax = 80;

Error wrong_type(std::string_view key, const Value& value, std::string_view expected) {
  return {ErrorCode::kProtocol, fmt::format("the key '{}' holds a value of type {}, expected {}",
                                            key, value.type_name(), expected)};
}

template <typename Type>
constexpr std::string_view kTypeName = "str";
template <>
constexpr std::string_view kTypeName<bool> = "bool";
template <>
constexpr std::string_view kTypeName<std::int64_t> = "int";
template <>
constexpr std::string_view kTypeName<double> = "float";

// The elements that a tensor reaches, by the dimensions seen so far.
struct Extent {
  std::int64_t last;       // element of the storage
  std::int64_t count = 1;  // of its elements
  bool empty = false;

  // Adds one dimension; false if a number is negative or becomes too large.
  bool add(std::int64_t size, std::int64_t stride) {
    if (size < 0 || stride < 0) return false;
    if (size == 0) {
      empty = true;
      return true;
    }
    std::int64_t reach = 0;
    return !__builtin_mul_overflow(size - 1, stride, &reach) &&
           !__builtin_add_overflow(last, reach, &last) &&
           !__builtin_mul_overflow(count, size, &count);
  }
};

}  // namespace

std::size_t bytes_of(ElementType type) {
  return kElements.at(static_cast<std::size_t>(type)).bytes;
}

std::string_view storage_name(ElementType type) {
  return kElements.at(static_cast<std::size_t>(type)).storage;
}

bool fits(const TensorValue& tensor, std::size_t elements) {
  if (tensor.sizes.size() != tensor.strides.size() || tensor.offset < 0) return false;
  Extent extent{tensor.offset};
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (!extent.add(tensor.sizes[i], tensor.strides[i])) return false;
  }
  if (extent.empty) return std::cmp_less_equal(tensor.offset, elements);
  return std::cmp_less(extent.last, elements) &&
         (extent.count <= kMaxRepeatedElements || std::cmp_less_equal(extent.count, elements));
}

std::string printable(std::string_view text) {
  std::string line;
  for (const char character : text.substr(0, kPrintableMax)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte >= 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += character;
    }
  }
  return text.size() > kPrintableMax ? line + "…" : line;
}

std::string printable_key(const Value::Key& key) {
  const auto* text = std::get_if<std::string>(&key);
  return text != nullptr ? printable(*text) : std::to_string(std::get<std::int64_t>(key));
}

Result<const Value*> field_value(const Value& dict, std::string_view key) {
  const auto* entries = dict.as<Value::Dict>();
  const Value* value = entries != nullptr ? entries->find(std::string(key)) : nullptr;
  if (value == nullptr) return Error(ErrorCode::kProtocol, fmt::format("no key '{}'", key));
  return value;
}

template <typename Type>
Result<Type> field(const Value& dict, std::string_view key) {
  const auto value = field_value(dict, key);
  if (!value) return value.error();
  if (const auto* found = (*value)->as<Type>()) return *found;
  if constexpr (std::is_same_v<Type, double>) {
    if (const auto* whole = (*value)->as<std::int64_t>()) return static_cast<double>(*whole);
  }
  return wrong_type(key, **value, kTypeName<Type>);
}

template Result<bool> field<bool>(const Value&, std::string_view);
template Result<std::int64_t> field<std::int64_t>(const Value&, std::string_view);
template Result<double> field<double>(const Value&, std::string_view);
template Result<std::string> field<std::string>(const Value&, std::string_view);

}  // namespace ddprun::worker
