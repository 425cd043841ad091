#include <fmt/format.h>

#include <bit>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/pickle_bytes.h"
#include "worker/checkpoint/pickle_graph.h"
#include "worker/checkpoint/pickle_opcodes.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

constexpr std::string_view kOrderedDict = "collections OrderedDict";
constexpr std::string_view kCounter = "collections Counter";
constexpr std::string_view kSize = "torch Size";
constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";

// The number of the ElementType; kElementTypes for another global.
std::size_t storage_type(std::string_view global) {
  constexpr std::string_view kModule = "torch ";
  if (!global.starts_with(kModule)) return kElementTypes;
  std::size_t type = 0;
  while (type < kElementTypes &&
         global.substr(kModule.size()) != storage_name(static_cast<ElementType>(type))) {
    ++type;
  }
  return type;
}

bool known(std::string_view global) {
  return global == kOrderedDict || global == kCounter || global == kSize ||
         global == kRebuildTensor || global == kRebuildParameter ||
         storage_type(global) < kElementTypes;
}

// Runs the opcodes over a stack, as Python does. The first error ends it; what is done after it
// does no harm.
class Machine : private PickleBytes {
 public:
  Machine(std::span<const std::byte> pickle, const FindStorage& find_storage, Objects objects)
      : PickleBytes(pickle), find_storage_(find_storage), objects_(objects) {}

  Result<Value> run() {
    std::size_t opcode_at = 0;
    while (!error() && !stopped_) {
      opcode_at = at();
      step(take<std::uint8_t>());
    }
    if (left() > 0) fail("more bytes follow the end");
    if (stack_.size() != 1 || !marks_.empty()) fail("it does not end with one value");
    if (error()) {
      return Error(error()->code(), fmt::format("byte {}: {}", opcode_at, error()->message()));
    }
    return to_value(nodes_, stack_.back(), objects_);
  }

 private:
  // ---- The stack.

  void push_id(NodeId id) {
    if (stack_.size() >= kMaxPickleValues) return fail("the stack is too high", ErrorCode::kLimit);
    stack_.push_back(id);
  }

  void push(Node node) {
    if (nodes_.size() >= kMaxPickleValues) {
      return fail(fmt::format("more than {} values", kMaxPickleValues), ErrorCode::kLimit);
    }
    nodes_.push_back(std::move(node));
    push_id(static_cast<NodeId>(nodes_.size() - 1));
  }

  // Values below the last mark belong to somebody else.
  std::optional<NodeId> top() {
    if (stack_.size() > (marks_.empty() ? 0 : marks_.back())) return stack_.back();
    fail("the stack is empty");
    return std::nullopt;
  }

  std::optional<NodeId> pop() {
    const auto id = top();
    if (id) stack_.pop_back();
    return id;
  }

  std::vector<NodeId> pop_to_mark() {
    if (marks_.empty()) {
      fail("there is no mark on the stack");
      return {};
    }
    const auto start = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<NodeId> items(start, stack_.end());
    stack_.erase(start, stack_.end());
    marks_.pop_back();
    return items;
  }

  template <typename Type>
  const Type* get(NodeId id) const {
    return std::get_if<Type>(&nodes_[id]);
  }

  // ---- The opcodes.

  void step(std::uint8_t byte) {
    if (error()) return;
    const auto opcode = static_cast<Opcode>(byte);
    if (push_scalar(opcode) || make_container(opcode) || fill_container(opcode)) return;
    if (use_memo(opcode) || make_object(opcode)) return;
    const auto name = name_of_unread(byte);
    fail(fmt::format("the opcode 0x{:02x} ({}) is not read: nothing in a checkpoint is executed",
                     byte, name));
  }

  bool push_scalar(Opcode opcode) {  // NOLINT(readability-function-cognitive-complexity): a table
    if (opcode == Opcode::kNone) return push(std::monostate()), true;
    if (opcode == Opcode::kNewTrue) return push(true), true;
    if (opcode == Opcode::kNewFalse) return push(false), true;
    if (opcode == Opcode::kBinInt) return push(std::int64_t{take<std::int32_t>()}), true;
    if (opcode == Opcode::kBinInt1) return push(std::int64_t{take<std::uint8_t>()}), true;
    if (opcode == Opcode::kBinInt2) return push(std::int64_t{take<std::uint16_t>()}), true;
    if (opcode == Opcode::kLong1) return push_long(), true;
    if (opcode == Opcode::kBinUnicode) return push(take_text(take<std::uint32_t>())), true;
    if (opcode == Opcode::kBinFloat) {
      const auto big_endian = take<std::uint64_t>();
      return push(std::bit_cast<double>(__builtin_bswap64(big_endian))), true;
    }
    return false;
  }

  void push_long() {
    const std::size_t count = take<std::uint8_t>();
    if (count > sizeof(std::int64_t)) {
      pass_over(fmt::format("an int of {} bytes, at most 8 are read", count), ErrorCode::kLimit);
      take_bytes(error() ? 0 : count);
      return;
    }
    const auto bytes = take_bytes(count);
    // Two's complement: the first bit is that of all bits before it.
    const bool negative = !bytes.empty() && std::to_integer<unsigned>(bytes.back()) >= 0x80;
    std::uint64_t number = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      number = (number << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
    }
    push(static_cast<std::int64_t>(number));
  }

  bool make_container(Opcode opcode) {
    if (opcode == Opcode::kMark) {
      if (marks_.size() >= kMaxPickleValues) fail("too many marks", ErrorCode::kLimit);
      marks_.push_back(stack_.size());
    } else if (opcode == Opcode::kEmptyDict) {
      push(DictNode{});
    } else if (opcode == Opcode::kEmptyList) {
      push(SequenceNode{{}, true});
    } else if (opcode == Opcode::kEmptyTuple) {
      push(SequenceNode{});
    } else if (opcode == Opcode::kTuple) {
      push(SequenceNode{pop_to_mark(), false});
    } else if (opcode >= Opcode::kTuple1 && opcode <= Opcode::kTuple3) {
      const std::size_t count = static_cast<std::size_t>(opcode) - 0x84;
      std::vector<NodeId> items(count);
      for (std::size_t i = count; i-- > 0;) items[i] = pop().value_or(0);
      push(SequenceNode{std::move(items), false});
    } else {
      return false;
    }
    return true;
  }

  bool fill_container(Opcode opcode) {
    std::vector<NodeId> items;
    if (opcode == Opcode::kAppends || opcode == Opcode::kSetItems) {
      items = pop_to_mark();
    } else if (opcode == Opcode::kAppend || opcode == Opcode::kSetItem) {
      items.assign(opcode == Opcode::kAppend ? 1 : 2, 0);
      for (std::size_t i = items.size(); i-- > 0;) items[i] = pop().value_or(0);
    } else {
      return false;
    }
    const auto target = top();
    if (error() || !target || get<ObjectNode>(*target) != nullptr) return true;
    if (opcode == Opcode::kAppend || opcode == Opcode::kAppends) {
      append(*target, items);
    } else {
      set_items(*target, items);
    }
    return true;
  }

  void append(NodeId target, const std::vector<NodeId>& items) {
    auto* list = std::get_if<SequenceNode>(&nodes_[target]);
    if (list == nullptr || !list->list) return fail("what is appended to is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
  }

  void set_items(NodeId target, const std::vector<NodeId>& items) {
    auto* dict = std::get_if<DictNode>(&nodes_[target]);
    if (dict == nullptr) return fail("what gets a key is no dict");
    if (items.size() % 2 != 0) return fail("a dict gets a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      dict->entries.emplace_back(items[i], items[i + 1]);
    }
  }

  bool use_memo(Opcode opcode) {
    const bool puts = opcode == Opcode::kBinPut || opcode == Opcode::kLongBinPut;
    const bool gets = opcode == Opcode::kBinGet || opcode == Opcode::kLongBinGet;
    if (!puts && !gets) return false;
    const bool is_short = opcode == Opcode::kBinPut || opcode == Opcode::kBinGet;
    const std::size_t index = is_short ? take<std::uint8_t>() : take<std::uint32_t>();
    if (index >= kMaxPickleValues) {
      fail(fmt::format("the memo has no number {}", index), ErrorCode::kLimit);
    } else if (puts) {
      if (memo_.size() <= index) memo_.resize(index + 1);
      memo_[index] = top();
    } else if (index >= memo_.size() || !memo_[index]) {
      fail(fmt::format("the memo has no number {}", index));
    } else {
      push_id(*memo_[index]);
    }
    return true;
  }

  // ---- The few objects that are not made of containers.

  bool make_object(Opcode opcode) {
    if (opcode == Opcode::kProto) {
      check_protocol(take<std::uint8_t>());
    } else if (opcode == Opcode::kStop) {
      stopped_ = true;
    } else if (opcode == Opcode::kGlobal) {
      const std::string module = take_line();
      make_global(module + " " + take_line());
    } else if (opcode == Opcode::kBinPersId) {
      if (const auto id = pop()) find_storage(*id);
    } else if (is_call(opcode)) {
      call_top();
    } else if (opcode == Opcode::kBuild) {
      drop_attributes();
    } else {
      return false;
    }
    return true;
  }

  void check_protocol(int version) {
    if (version != 2) fail(fmt::format("protocol {} of pickle, only 2 is read", version));
  }

  bool is_call(Opcode opcode) const {
    return opcode == Opcode::kReduce ||
           (opcode == Opcode::kNewObject && objects_ == Objects::kPassOver);
  }

  void call_top() {
    const auto arguments = pop();
    const auto callable = pop();
    if (arguments && callable) call(*callable, *arguments);
  }

  void make_global(std::string name) {
    if (known(name)) return push(GlobalNode{std::move(name)});
    pass_over(fmt::format("the global '{}' is not read: nothing in a checkpoint is executed",
                          printable(name)));
  }

  // Puts an object there that says why it is not read, or refuses the file.
  void pass_over(std::string reason, ErrorCode code = ErrorCode::kProtocol) {
    if (objects_ == Objects::kRefuse) return fail(std::move(reason), code);
    push(ObjectNode{std::make_shared<const std::string>(std::move(reason))});
  }

  // The first object among what a call gets, or calls.
  const ObjectNode* object_in(NodeId callable, const SequenceNode& arguments) const {
    if (const auto* object = get<ObjectNode>(callable)) return object;
    for (const NodeId item : arguments.items)
      if (const auto* object = get<ObjectNode>(item)) return object;
    return nullptr;
  }

  // A state_dict has the versions of its modules as an attribute, which nothing here needs.
  void drop_attributes() {
    const auto state = pop();
    const auto target = top();
    if (!state || !target || get<ObjectNode>(*target) != nullptr) return;
    const auto* dict = get<DictNode>(*target);
    if (dict == nullptr || !dict->ordered || get<DictNode>(*state) == nullptr) {
      fail("only an OrderedDict may have attributes");
    }
  }

  // Returns whether a call gives its first argument as it is.
  bool gives_first(const std::string& name, const std::vector<NodeId>& items) const {
    if (name == kCounter) return items.size() == 1 && get<DictNode>(items[0]) != nullptr;
    if (name == kSize) return items.size() == 1 && get<SequenceNode>(items[0]) != nullptr;
    return name == kRebuildParameter && items.size() == 3 && get<TensorNode>(items[0]) != nullptr;
  }

  void call(NodeId callable, NodeId arguments) {
    const auto* global = get<GlobalNode>(callable);
    const auto* tuple = get<SequenceNode>(arguments);
    if (tuple != nullptr && !tuple->list) {
      // A copy: push() moves the nodes.
      if (const auto* object = object_in(callable, *tuple)) return push(ObjectNode(*object));
    }
    if (global == nullptr || tuple == nullptr || tuple->list) {
      return fail("what is called is no global, or its arguments are no tuple");
    }
    const std::vector<NodeId> items = tuple->items;
    const std::string name = global->name;
    if (name == kOrderedDict && items.empty()) return push(DictNode{{}, true});
    if (gives_first(name, items)) return push_id(items[0]);
    if (name == kRebuildTensor && items.size() == 6) return rebuild_tensor(items);
    fail(fmt::format("'{}' with these {} arguments is not read", name, items.size()));
  }

  static bool holds(const Storage& storage, ElementType type, std::int64_t elements) {
    const std::size_t size = storage.bytes->size();
    return storage.type == type && elements >= 0 && size % bytes_of(type) == 0 &&
           std::cmp_equal(elements, size / bytes_of(type));
  }

  // ('storage', torch.FloatStorage, key, device, elements)
  void find_storage(NodeId id) {
    const auto* tuple = get<SequenceNode>(id);
    if (tuple == nullptr || tuple->items.size() != 5) return fail("a persistent id of no storage");
    const auto& items = tuple->items;
    const auto* kind = get<std::string>(items[0]);
    if (const auto* object = object_in(items[1], {})) return push(ObjectNode(*object));
    const auto* global = get<GlobalNode>(items[1]);
    const auto* key = get<std::string>(items[2]);
    const auto* elements = get<std::int64_t>(items[4]);
    const std::size_t number = global == nullptr ? kElementTypes : storage_type(global->name);
    if (kind == nullptr || *kind != "storage" || number == kElementTypes || key == nullptr ||
        elements == nullptr) {
      return fail("a persistent id of no storage");
    }
    const auto type = static_cast<ElementType>(number);
    auto [found, added] = storages_.try_emplace(*key);
    if (added) {
      auto bytes = find_storage_(*key);
      if (!bytes) return fail(bytes.error().message(), bytes.error().code());
      found->second = std::make_shared<Storage>(Storage{type, std::move(*bytes)});
    }
    if (!holds(*found->second, type, *elements)) {
      return fail(fmt::format("storage '{}' has {} bytes, which are not {} elements of a {}",
                              printable(*key), found->second->bytes->size(), *elements,
                              storage_name(type)));
    }
    push(StorageNode{found->second});
  }

  std::optional<std::vector<std::int64_t>> numbers(NodeId id) const {
    const auto* tuple = get<SequenceNode>(id);
    if (tuple == nullptr || tuple->items.size() > kMaxDimensions) return std::nullopt;
    std::vector<std::int64_t> numbers;
    for (const NodeId item : tuple->items) {
      const auto* number = get<std::int64_t>(item);
      if (number == nullptr) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  }

  // (storage, offset, sizes, strides, requires_grad, hooks)
  void rebuild_tensor(const std::vector<NodeId>& items) {
    const auto* storage = get<StorageNode>(items[0]);
    const auto* offset = get<std::int64_t>(items[1]);
    auto sizes = numbers(items[2]);
    auto strides = numbers(items[3]);
    const auto* requires_grad = get<bool>(items[4]);
    const auto* hooks = get<DictNode>(items[5]);
    if (storage == nullptr || offset == nullptr || !sizes || !strides || requires_grad == nullptr) {
      return fail("a tensor is described by other values than a storage and numbers");
    }
    if (hooks == nullptr || !hooks->entries.empty()) return fail("a tensor with hooks is not read");
    TensorValue tensor{storage->storage, *offset, std::move(*sizes), std::move(*strides),
                       *requires_grad};
    const Storage& elements = *storage->storage;
    if (!fits(tensor, elements.bytes->size() / bytes_of(elements.type))) {
      return fail("a tensor does not lie in its storage");
    }
    push(TensorNode{std::make_shared<TensorValue>(std::move(tensor))});
  }

  const FindStorage& find_storage_;
  Objects objects_;
  bool stopped_ = false;
  std::vector<Node> nodes_;
  std::vector<NodeId> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::vector<std::optional<NodeId>> memo_;
  std::map<std::string, std::shared_ptr<const Storage>> storages_;
};

}  // namespace

Result<Value> read_pickle(std::span<const std::byte> pickle, const FindStorage& find_storage,
                          Objects objects) {
  if (pickle.size() > kMaxPickleBytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} bytes of values, at most {} are read",
                                                pickle.size(), kMaxPickleBytes));
  }
  return Machine(pickle, find_storage, objects).run();
}

}  // namespace ddprun::worker
