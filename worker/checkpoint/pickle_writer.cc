#include <fmt/format.h>

#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/shown_text.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/pickle_opcodes.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

// Returns whether Python decodes the text. It has no bytes out of place, no forms that are longer
// than needed, no surrogates (RFC 3629).
bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

class Writer {
 public:
  Result<PickleOutput> write(const Value& value) {
    op(Opcode::kProto);
    out_.bytes += '\2';
    put(value, 0);
    op(Opcode::kStop);
    if (error_) return *error_;
    return std::move(out_);
  }

 private:
  void fail(ErrorCode code, std::string message) {
    if (!error_) error_ = Error(code, std::move(message));
  }

  void op(Opcode opcode) { out_.bytes += static_cast<char>(opcode); }

  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      out_.bytes += static_cast<char>((value >> (8U * static_cast<unsigned>(i))) & 0xFFU);
    }
  }

  void put(std::int64_t value) {
    if (value >= std::numeric_limits<std::int32_t>::min() &&
        value <= std::numeric_limits<std::int32_t>::max()) {
      op(Opcode::kBinInt);
      return number(static_cast<std::uint64_t>(value), 4);
    }
    op(Opcode::kLong1);
    out_.bytes += '\10';
    number(static_cast<std::uint64_t>(value), 8);
  }

  void put(bool value) { op(value ? Opcode::kNewTrue : Opcode::kNewFalse); }

  // Big-endian, unlike all other numbers.
  void put(double value) {
    op(Opcode::kBinFloat);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (unsigned i = 8; i-- > 0;) out_.bytes += static_cast<char>((bits >> (8U * i)) & 0xFFU);
  }

  void put(std::string_view text) {
    if (!is_utf8(text)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the text '{}' is not UTF-8", printable(text)));
    }
    if (text.size() > kMaxPickleBytes) return fail(ErrorCode::kLimit, "a text of over 64 MiB");
    op(Opcode::kBinUnicode);
    number(text.size(), 4);
    out_.bytes += text;
  }

  void global(std::string_view module, std::string_view name) {
    op(Opcode::kGlobal);
    out_.bytes += fmt::format("{}\n{}\n", module, name);
  }

  void put(const std::vector<std::int64_t>& numbers) {
    op(Opcode::kMark);
    for (const std::int64_t each : numbers) put(each);
    op(Opcode::kTuple);
  }

  void empty_ordered_dict() {
    global("collections", "OrderedDict");
    op(Opcode::kEmptyTuple);
    op(Opcode::kReduce);
  }

  // The persistent id of the storage. One that tensors share is written once. Memory that is seen
  // as two types, or with two lengths, is two storages. A reader takes type and length from the
  // first of an id.
  void put(const Storage& storage) {
    const StorageBytes* const bytes = storage.bytes.get();
    const auto memory = bytes->memory();
    const void* const place = memory.empty() ? static_cast<const void*>(bytes) : memory.data();
    const auto [known, added] =
        keys_.try_emplace(Key{place, bytes->size(), storage.type}, out_.storages.size());
    if (added) out_.storages.push_back(storage.bytes);
    op(Opcode::kMark);
    put(std::string_view("storage"));
    global("torch", storage_name(storage.type));
    put(std::string_view(std::to_string(known->second)));
    put(std::string_view("cpu"));
    put(static_cast<std::int64_t>(bytes->size() / bytes_of(storage.type)));
    op(Opcode::kTuple);
    op(Opcode::kBinPersId);
  }

  void put(const TensorValue& tensor) {
    const Storage& storage = *tensor.storage;
    if (!fits(tensor, storage.bytes->size() / bytes_of(storage.type))) {
      return fail(ErrorCode::kInvalidArgument, "a tensor does not lie in its storage");
    }
    global("torch._utils", "_rebuild_tensor_v2");
    op(Opcode::kMark);
    put(storage);
    put(tensor.offset);
    put(tensor.sizes);
    put(tensor.strides);
    put(tensor.requires_grad);
    empty_ordered_dict();  // of hooks
    op(Opcode::kTuple);
    op(Opcode::kReduce);
  }

  void put(const std::vector<Value>& items, int depth) {
    op(Opcode::kMark);
    for (const Value& item : items) put(item, depth + 1);
  }

  void put(const Value::Dict& dict, int depth) {
    if (dict.ordered) {
      empty_ordered_dict();
    } else {
      op(Opcode::kEmptyDict);
    }
    op(Opcode::kMark);
    for (const auto& [key, value] : dict.entries) {
      if (const auto* text = std::get_if<std::string>(&key)) {
        put(std::string_view(*text));
      } else {
        put(std::get<std::int64_t>(key));
      }
      put(value, depth + 1);
    }
    op(Opcode::kSetItems);
  }

  void put(const Value& value, int depth) {
    if (depth > kMaxDepth) {
      return fail(ErrorCode::kLimit, fmt::format("values lie more than {} deep", kMaxDepth));
    }
    if (value.none()) return op(Opcode::kNone);
    if (const auto* truth = value.as<bool>()) return put(*truth);
    if (const auto* whole = value.as<std::int64_t>()) return put(*whole);
    if (const auto* real = value.as<double>()) return put(*real);
    if (const auto* text = value.as<std::string>()) return put(std::string_view(*text));
    if (const auto* tensor = value.as<TensorValue>()) return put(*tensor);
    if (const auto* dict = value.as<Value::Dict>()) return put(*dict, depth);
    if (const auto* object = value.as<Value::Object>())
      return fail(ErrorCode::kInvalidArgument, *object->reason);
    const bool list = value.as<Value::List>() != nullptr;
    if (list) op(Opcode::kEmptyList);
    put(*value.items(), depth);
    op(list ? Opcode::kAppends : Opcode::kTuple);
  }

  PickleOutput out_;
  using Key =
      std::tuple<const void*, std::size_t, ElementType>;  // where the bytes are, how many, as what
  std::map<Key, std::size_t> keys_;
  std::optional<Error> error_;
};

}  // namespace

Result<PickleOutput> write_pickle(const Value& value) { return Writer().write(value); }

}  // namespace ddprun::worker
