// The nodes that the opcodes of a pickle have made so far. They name each other by number: a pickle
// may put one list into several others, or into itself. to_value() makes the tree of it, and
// refuses what is none. The pickle's reader owns it. Pure.
#pragma once

#include <ddprun/value.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/pickle.h"

namespace ddprun::worker {

// The globals that are known. Their constants are the reader's to compare.
struct GlobalNode {
  std::string name;  // "collections OrderedDict"
};

using NodeId = std::uint32_t;

struct SequenceNode {
  std::vector<NodeId> items;
  bool list = false;  // else a tuple
};

struct DictNode {
  std::vector<std::pair<NodeId, NodeId>> entries;
  bool ordered = false;
};

// A value that is passed over, and why.
struct ObjectNode {
  std::shared_ptr<const std::string> reason;
};

// A storage that a persistent id has named.
struct StorageNode {
  std::shared_ptr<const Storage> storage;
};

struct TensorNode {
  std::shared_ptr<const TensorValue> tensor;
};

using Node = std::variant<std::monostate, bool, std::int64_t, double, std::string, GlobalNode,
                          SequenceNode, DictNode, StorageNode, TensorNode, ObjectNode>;

// The tree below the node. Errors: kProtocol if a dict has a key twice, or one that is neither int
// nor str. Also if something else than a value stands there. kLimit if the tree is too deep (as one
// that contains itself) or too large. With Objects::kPassOver a dict with other keys, and what is
// no value, is an object.
Result<Value> to_value(const std::vector<Node>& nodes, NodeId root, Objects objects);

}  // namespace ddprun::worker
