// A pickle of objects, as Python's pickle.dump writes them (CPython 3.11, Lib/pickletools.py,
// protocols 2 to 5). The classes are those that the caller knows. Nothing is looked up or called:
// a call or an object is a node with its class and its arguments. Values name each other by number,
// so that what a pickle names often takes memory once. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

// Larger pickles are not read. PyTorch's of a model in two million pieces is below both bounds. A
// value takes 40 bytes of memory, and a byte of a pickle makes one at most.
struct ObjectPickleBounds {
  std::size_t bytes = std::size_t{512} << 20;
  std::size_t values = std::size_t{1} << 26;
};

// A pickle's values. Pointers live as long as it does.
class ObjectPickle {
 public:
  using Id = std::uint32_t;
  using Pairs = std::vector<std::pair<Id, Id>>;

  // Errors: kProtocol for a class that is not known ("module name"), another opcode, and damage.
  // kLimit where a bound is passed. One line that names the byte.
  using Known = std::function<bool(std::string_view global)>;
  static Result<ObjectPickle> read(std::span<const std::byte> pickle, const Known& known,
                                   const ObjectPickleBounds& bounds = {});

  Id root() const { return root_; }

  // Each is null where the value is of another type.
  const std::string* text(Id id) const;
  const std::int64_t* number(Id id) const;
  // The items of a tuple or a list; those of a call of torch.Size, too.
  const std::vector<Id>* items(Id id) const;
  const Pairs* dict(Id id) const;
  // The class itself: "torch float32".
  const std::string* global(Id id) const;
  // Whether it is an object of the class, or a call of it.
  bool is_a(Id id, std::string_view global) const;
  // The attribute of an object. Nothing if there is none, or if the object has over 64.
  std::optional<Id> attribute(Id id, std::string_view name) const;
  // The state that an object was given. Nothing if there is none.
  std::optional<Id> state(Id id) const;

 private:
  friend class ObjectPickleReader;
  struct Global {
    std::string name;
  };
  struct Sequence {
    std::vector<Id> items;
    bool list = false;
  };
  struct Dict {
    Pairs pairs;
  };
  struct Object {
    Id global = 0;
    Id arguments = 0;
    std::optional<Id> state;
  };
  using Node = std::variant<std::monostate, bool, std::int64_t, double, std::string, Global,
                            Sequence, Dict, Object>;

  template <typename Type>
  const Type* get(Id id) const {
    return std::get_if<Type>(&nodes_[id]);
  }

  std::vector<Node> nodes_;
  Id root_ = 0;
};

}  // namespace ddprun::worker
