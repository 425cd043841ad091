#include "worker/checkpoint/pickle_graph.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle.h"

namespace ddprun::worker {
namespace {

class Tree {
 public:
  Tree(const std::vector<Node>& nodes, Objects objects) : nodes_(nodes), objects_(objects) {}

  Result<Value> make(NodeId root) {
    Value value = grow(root, 0);
    if (error_) return *error_;
    return value;
  }

 private:
  void fail(ErrorCode code, std::string message) {
    if (!error_) error_ = Error(code, std::move(message));
  }

  void spend(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > kMaxTreeBytes) {
      fail(ErrorCode::kLimit,
           fmt::format("the values take more than {} MiB, beside tensors", kMaxTreeBytes >> 20U));
    }
  }

  Value grow(NodeId id, int depth) {
    if (depth > kMaxDepth) {
      fail(ErrorCode::kLimit,
           fmt::format("values lie more than {} deep, or contain themselves", kMaxDepth));
    }
    spend(sizeof(Value));
    if (error_) return {};
    const Node& node = nodes_[id];
    if (std::holds_alternative<std::monostate>(node)) return {};
    if (const auto* truth = std::get_if<bool>(&node)) return Value(*truth);
    if (const auto* whole = std::get_if<std::int64_t>(&node)) return Value(*whole);
    if (const auto* real = std::get_if<double>(&node)) return Value(*real);
    if (const auto* text = std::get_if<std::string>(&node)) {
      spend(text->size());
      return error_ ? Value() : Value(*text);
    }
    if (const auto* tensor = std::get_if<TensorNode>(&node)) {
      spend(sizeof(std::int64_t) * 2 * tensor->tensor->sizes.size());
      return Value(*tensor->tensor);
    }
    if (const auto* sequence = std::get_if<SequenceNode>(&node)) return grow(*sequence, depth);
    if (const auto* dict = std::get_if<DictNode>(&node)) return grow(*dict, depth);
    if (const auto* object = std::get_if<ObjectNode>(&node))
      return Value(Value::Object{object->reason});
    const auto* global = std::get_if<GlobalNode>(&node);
    return no_value(
        global != nullptr
            ? fmt::format("the global '{}' stands where a value is expected", global->name)
            : "a storage stands where a value is expected");
  }

  Value no_value(std::string reason) {
    spend(reason.size());
    if (objects_ == Objects::kPassOver)
      return Value(Value::Object{std::make_shared<const std::string>(std::move(reason))});
    fail(ErrorCode::kProtocol, std::move(reason));
    return {};
  }

  Value grow(const SequenceNode& sequence, int depth) {
    std::vector<Value> items;
    for (const NodeId item : sequence.items) {
      items.push_back(grow(item, depth + 1));
      if (error_) return {};
    }
    return sequence.list ? Value(Value::List{std::move(items)})
                         : Value(Value::Tuple{std::move(items)});
  }

  Value grow(const DictNode& dict, int depth) {
    Value::Dict grown{.entries = {}, .ordered = dict.ordered};
    std::set<Value::Key> keys;
    for (const auto& [key_id, value_id] : dict.entries) {
      if (!is_key(key_id)) return no_value("a dict has a key that is neither int nor str");
      Value::Key key = make_key(key_id);
      if (error_) return {};
      if (!keys.insert(key).second) {
        fail(ErrorCode::kProtocol,
             fmt::format("a dict has the key '{}' more than once", printable_key(key)));
        return {};
      }
      grown.entries.push_back({std::move(key), grow(value_id, depth + 1)});
      if (error_) return {};
    }
    return Value(std::move(grown));
  }

  bool is_key(NodeId id) const {
    return std::holds_alternative<std::int64_t>(nodes_[id]) ||
           std::holds_alternative<std::string>(nodes_[id]);
  }

  Value::Key make_key(NodeId id) {
    const Node& node = nodes_[id];
    spend(sizeof(Value::Key));
    if (const auto* whole = std::get_if<std::int64_t>(&node)) return *whole;
    if (const auto* text = std::get_if<std::string>(&node)) {
      spend(2 * text->size());
      return error_ ? Value::Key() : Value::Key(*text);
    }
    return {};
  }

  const std::vector<Node>& nodes_;
  Objects objects_;
  std::size_t bytes_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<Value> to_value(const std::vector<Node>& nodes, NodeId root, Objects objects) {
  return Tree(nodes, objects).make(root);
}

}  // namespace ddprun::worker
