#include "worker/checkpoint/object_pickle.h"

#include <fmt/format.h>

#include <bit>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle_bytes.h"
#include "worker/checkpoint/pickle_opcodes.h"

namespace ddprun::worker {
namespace {

// A look-up goes through all attributes, and a pickle may name one object a million times. Objects
// of DCP have seven at most.
constexpr std::size_t kMaxAttributes = 64;

}  // namespace

// Runs the opcodes over a stack, as Python does. The first error ends it; what is done after it
// does no harm.
class ObjectPickleReader : private PickleBytes {
 public:
  ObjectPickleReader(std::span<const std::byte> pickle, const ObjectPickle::Known& known,
                     std::size_t values_max)
      : PickleBytes(pickle), known_(known), values_max_(values_max) {}

  Result<ObjectPickle> run() {
    std::size_t opcode_at = 0;
    while (!error() && !stopped_) {
      opcode_at = at();
      step(take<std::uint8_t>());
    }
    if (left() > 0) fail("more bytes follow the end");
    if (stack_.size() != 1 || !marks_.empty()) fail("it does not end with one value");
    if (error())
      return Error(error()->code(), fmt::format("byte {}: {}", opcode_at, error()->message()));
    read_.root_ = stack_.back();
    return std::move(read_);
  }

 private:
  using Id = ObjectPickle::Id;

  // ---- The stack. Values below the last mark belong to somebody else.

  void push_id(Id id) {
    if (stack_.size() >= values_max_) return fail("the stack is too high", ErrorCode::kLimit);
    stack_.push_back(id);
  }

  void push(ObjectPickle::Node node) {
    if (read_.nodes_.size() >= values_max_)
      return fail(fmt::format("more than {} values", values_max_), ErrorCode::kLimit);
    read_.nodes_.push_back(std::move(node));
    push_id(static_cast<Id>(read_.nodes_.size() - 1));
  }

  std::optional<Id> top() {
    if (stack_.size() > (marks_.empty() ? 0 : marks_.back())) return stack_.back();
    fail("the stack is empty");
    return std::nullopt;
  }

  std::optional<Id> pop() {
    const auto id = top();
    if (id) stack_.pop_back();
    return id;
  }

  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) {
      fail("there is no mark on the stack");
      return {};
    }
    const auto start = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Id> items(start, stack_.end());
    stack_.erase(start, stack_.end());
    marks_.pop_back();
    return items;
  }

  std::vector<Id> pop_items(std::size_t count) {
    std::vector<Id> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop().value_or(0);
    return items;
  }

  // ---- The opcodes.

  void step(std::uint8_t byte) {
    if (error()) return;
    const auto opcode = static_cast<Opcode>(byte);
    if (push_number(opcode) || push_text(opcode) || make_container(opcode) ||
        fill_container(opcode) || use_memo(opcode) || make_object(opcode) || frame(opcode))
      return;
    fail(fmt::format("the opcode 0x{:02x} ({}) is not read: nothing in a checkpoint is executed",
                     byte, name_of_unread(byte)));
  }

  bool push_number(Opcode opcode) {
    if (opcode == Opcode::kNone) return push(std::monostate()), true;
    if (opcode == Opcode::kNewTrue) return push(true), true;
    if (opcode == Opcode::kNewFalse) return push(false), true;
    if (opcode == Opcode::kBinInt) return push(std::int64_t{take<std::int32_t>()}), true;
    if (opcode == Opcode::kBinInt1) return push(std::int64_t{take<std::uint8_t>()}), true;
    if (opcode == Opcode::kBinInt2) return push(std::int64_t{take<std::uint16_t>()}), true;
    if (opcode == Opcode::kLong1) return push_long(), true;
    return false;
  }

  // Offsets, lengths and sizes are not negative.
  void push_long() {
    const std::size_t count = take<std::uint8_t>();
    std::uint64_t number = 0;
    const auto bytes = take_bytes(count);
    if (count > sizeof number + 1) return fail("an int of more than 8 bytes", ErrorCode::kLimit);
    for (std::size_t i = bytes.size(); i-- > 0;)
      number = (number << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
    const bool negative = !bytes.empty() && std::to_integer<unsigned>(bytes.back()) >= 0x80;
    if (negative || number > std::uint64_t{INT64_MAX})
      return fail("an int that is negative or of more than 63 bits", ErrorCode::kLimit);
    push(static_cast<std::int64_t>(number));
  }

  bool push_text(Opcode opcode) {
    if (opcode == Opcode::kShortBinUnicode) return push(take_text(take<std::uint8_t>())), true;
    if (opcode == Opcode::kBinUnicode) return push(take_text(take<std::uint32_t>())), true;
    if (opcode != Opcode::kBinFloat) return false;
    push(std::bit_cast<double>(__builtin_bswap64(take<std::uint64_t>())));
    return true;
  }

  bool make_container(Opcode opcode) {
    if (opcode == Opcode::kMark) {
      if (marks_.size() >= values_max_) fail("too many marks", ErrorCode::kLimit);
      marks_.push_back(stack_.size());
    } else if (opcode == Opcode::kEmptyDict) {
      push(ObjectPickle::Dict{});
    } else if (opcode == Opcode::kEmptyList) {
      push(ObjectPickle::Sequence{{}, true});
    } else if (opcode == Opcode::kEmptyTuple) {
      push(ObjectPickle::Sequence{});
    } else if (opcode == Opcode::kTuple) {
      push(ObjectPickle::Sequence{pop_to_mark(), false});
    } else if (opcode >= Opcode::kTuple1 && opcode <= Opcode::kTuple3) {
      push(ObjectPickle::Sequence{pop_items(static_cast<std::size_t>(opcode) - 0x84), false});
    } else {
      return false;
    }
    return true;
  }

  bool fill_container(Opcode opcode) {
    std::vector<Id> items;
    if (opcode == Opcode::kAppends || opcode == Opcode::kSetItems) {
      items = pop_to_mark();
    } else if (opcode == Opcode::kAppend || opcode == Opcode::kSetItem) {
      items = pop_items(opcode == Opcode::kAppend ? 1 : 2);
    } else {
      return false;
    }
    const auto target = top();
    if (error() || !target) return true;
    if (opcode == Opcode::kAppend || opcode == Opcode::kAppends) {
      append(read_.nodes_[*target], items);
    } else {
      set_items(read_.nodes_[*target], items);
    }
    return true;
  }

  void append(ObjectPickle::Node& target, const std::vector<Id>& items) {
    auto* list = std::get_if<ObjectPickle::Sequence>(&target);
    if (list == nullptr || !list->list) return fail("what is appended to is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
  }

  void set_items(ObjectPickle::Node& target, const std::vector<Id>& items) {
    auto* dict = std::get_if<ObjectPickle::Dict>(&target);
    if (dict == nullptr) return fail("what gets a key is no dict");
    if (items.size() % 2 != 0) return fail("a dict gets a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2)
      dict->pairs.emplace_back(items[i], items[i + 1]);
  }

  bool use_memo(Opcode opcode) {
    if (opcode == Opcode::kMemoize) {
      if (const auto id = top()) memoize(memo_.size(), *id);
    } else if (opcode == Opcode::kBinPut || opcode == Opcode::kLongBinPut) {
      const auto id = top();
      const auto index = memo_index(opcode == Opcode::kBinPut);
      if (id) memoize(index, *id);
    } else if (opcode == Opcode::kBinGet || opcode == Opcode::kLongBinGet) {
      const auto index = memo_index(opcode == Opcode::kBinGet);
      if (index >= memo_.size() || !memo_[index]) {
        fail(fmt::format("the memo has no number {}", index));
      } else {
        push_id(*memo_[index]);
      }
    } else {
      return false;
    }
    return true;
  }

  std::size_t memo_index(bool is_short) {
    return is_short ? take<std::uint8_t>() : take<std::uint32_t>();
  }

  // Python numbers what it puts there from 0 on. So the memo has no more than the values.
  void memoize(std::size_t index, Id id) {
    if (index >= read_.nodes_.size())
      return fail(fmt::format("the memo has no number {}", index), ErrorCode::kLimit);
    if (memo_.size() <= index) memo_.resize(index + 1);
    memo_[index] = id;
  }

  bool make_object(Opcode opcode) {
    if (opcode == Opcode::kGlobal) {
      const std::string module = take_line();
      make_global(module + " " + take_line());
    } else if (opcode == Opcode::kStackGlobal) {
      const auto items = pop_items(2);
      if (error()) return true;
      const auto* module = read_.text(items[0]);
      const auto* name = read_.text(items[1]);
      if (module == nullptr || name == nullptr) return fail("a global has no name"), true;
      make_global(*module + " " + *name);
    } else if (opcode == Opcode::kReduce || opcode == Opcode::kNewObject) {
      call();
    } else if (opcode == Opcode::kBuild) {
      build();
    } else {
      return false;
    }
    return true;
  }

  void make_global(const std::string& name) {
    if (!known_(name))
      fail(fmt::format("the global '{}' is not read: nothing in a checkpoint is executed",
                       printable(name)));
    push(ObjectPickle::Global{name});
  }

  void call() {
    const auto items = pop_items(2);
    if (error()) return;
    if (read_.global(items[0]) == nullptr || read_.items(items[1]) == nullptr)
      return fail("what is called is no global, or its arguments are no tuple");
    push(ObjectPickle::Object{items[0], items[1], std::nullopt});
  }

  void build() {
    const auto state = pop();
    const auto target = top();
    if (!state || !target) return;
    auto* object = std::get_if<ObjectPickle::Object>(&read_.nodes_[*target]);
    if (object == nullptr) return fail("what gets attributes is no object");
    object->state = *state;
  }

  // Frames say how many bytes follow, for readers of streams.
  bool frame(Opcode opcode) {
    if (opcode == Opcode::kProto) {
      const int version = take<std::uint8_t>();
      if (version < 2 || version > 5)
        fail(fmt::format("protocol {} of pickle, only 2 to 5 are read", version));
    } else if (opcode == Opcode::kFrame) {
      if (take<std::uint64_t>() > left()) fail("a frame is longer than the file");
    } else if (opcode == Opcode::kStop) {
      stopped_ = true;
    } else {
      return false;
    }
    return true;
  }

  const ObjectPickle::Known& known_;
  std::size_t values_max_;
  bool stopped_ = false;
  ObjectPickle read_;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::vector<std::optional<Id>> memo_;
};

Result<ObjectPickle> ObjectPickle::read(std::span<const std::byte> pickle, const Known& known,
                                        const ObjectPickleBounds& bounds) {
  if (pickle.size() > bounds.bytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} bytes of values, at most {} are read",
                                                pickle.size(), bounds.bytes));
  }
  return ObjectPickleReader(pickle, known, bounds.values).run();
}

const std::string* ObjectPickle::text(Id id) const { return get<std::string>(id); }

const std::int64_t* ObjectPickle::number(Id id) const { return get<std::int64_t>(id); }

const std::vector<ObjectPickle::Id>* ObjectPickle::items(Id id) const {
  if (const auto* sequence = get<Sequence>(id)) return &sequence->items;
  if (!is_a(id, "torch Size")) return nullptr;
  const auto* arguments = get<Sequence>(get<Object>(id)->arguments);
  if (arguments == nullptr || arguments->items.size() != 1) return nullptr;
  const auto* sizes = get<Sequence>(arguments->items[0]);
  return sizes == nullptr ? nullptr : &sizes->items;
}

const ObjectPickle::Pairs* ObjectPickle::dict(Id id) const {
  const auto* dict = get<Dict>(id);
  return dict == nullptr ? nullptr : &dict->pairs;
}

const std::string* ObjectPickle::global(Id id) const {
  const auto* global = get<Global>(id);
  return global == nullptr ? nullptr : &global->name;
}

bool ObjectPickle::is_a(Id id, std::string_view global) const {
  const auto* object = get<Object>(id);
  return object != nullptr && *this->global(object->global) == global;
}

std::optional<ObjectPickle::Id> ObjectPickle::attribute(Id id, std::string_view name) const {
  const auto* object = get<Object>(id);
  const auto* pairs = object == nullptr || !object->state ? nullptr : dict(*object->state);
  if (pairs == nullptr || pairs->size() > kMaxAttributes) return std::nullopt;
  for (const auto& [key, value] : *pairs)
    if (const auto* known = text(key); known != nullptr && *known == name) return value;
  return std::nullopt;
}

std::optional<ObjectPickle::Id> ObjectPickle::state(Id id) const {
  const auto* object = get<Object>(id);
  return object == nullptr ? std::nullopt : object->state;
}

}  // namespace ddprun::worker
