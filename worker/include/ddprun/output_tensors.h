// Finds the tensors in the result of a module's forward(). DataParallel and ShardedParallel know
// tensors, and any vector, array, tuple, pair, optional or map of such. A program teaches them a
// type of its own:
//
//   template <>
//   struct ddprun::OutputTensors<Answer> {
//     static constexpr bool kKnown = true;
//     static void collect(Answer& answer, std::vector<at::Tensor*>& all) {
//       all.push_back(&answer.scores);
//     }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddprun {

// The way to the tensors in a value of type T. A type of the program that holds tensors specialises
// it. It has kKnown = true and a collect() that appends the address of each of them.
template <typename T>
struct OutputTensors {
  static constexpr bool kKnown = false;  // true: collect() finds the tensors
};

// A tensor is its own.
template <>
struct OutputTensors<at::Tensor> {
  static constexpr bool kKnown = true;  // collect() finds it
  // Appends the address of the tensor.
  static void collect(at::Tensor& tensor, std::vector<at::Tensor*>& all) { all.push_back(&tensor); }
};

// The tensors of a tuple, in its order.
template <typename... T>
struct OutputTensors<std::tuple<T...>> {
  // Whether all of its types are known.
  static constexpr bool kKnown = (OutputTensors<T>::kKnown && ...);
  // Appends the addresses of its tensors.
  static void collect(std::tuple<T...>& values, std::vector<at::Tensor*>& all) {
    std::apply([&](T&... value) { (OutputTensors<T>::collect(value, all), ...); }, values);
  }
};

// The tensors of a pair.
template <typename First, typename Second>
struct OutputTensors<std::pair<First, Second>> {
  // Whether both of its types are known.
  static constexpr bool kKnown = OutputTensors<First>::kKnown && OutputTensors<Second>::kKnown;
  // Appends the addresses of its tensors.
  static void collect(std::pair<First, Second>& values, std::vector<at::Tensor*>& all) {
    OutputTensors<First>::collect(values.first, all);
    OutputTensors<Second>::collect(values.second, all);
  }
};

// The tensors of an optional: those of its value, if it has one.
template <typename T>
struct OutputTensors<std::optional<T>> {
  static constexpr bool kKnown = OutputTensors<T>::kKnown;  // as its type
  // Appends the addresses of its tensors.
  static void collect(std::optional<T>& value, std::vector<at::Tensor*>& all) {
    if (value) OutputTensors<T>::collect(*value, all);
  }
};

// The tensors of a list of values, in its order.
template <typename List>
struct ListedTensors {
  using Value = typename List::value_type;                      // of each item
  static constexpr bool kKnown = OutputTensors<Value>::kKnown;  // as its type
  // Appends the addresses of its tensors.
  static void collect(List& values, std::vector<at::Tensor*>& all) {
    for (Value& value : values) OutputTensors<Value>::collect(value, all);
  }
};
// The tensors of a vector.
template <typename T>
struct OutputTensors<std::vector<T>> : ListedTensors<std::vector<T>> {};
// The tensors of an array.
template <typename T, std::size_t kCount>
struct OutputTensors<std::array<T, kCount>> : ListedTensors<std::array<T, kCount>> {};

// The tensors of the values of a map, in the map's order.
template <typename Map>
struct MappedTensors {
  using Value = typename Map::mapped_type;                      // of each key
  static constexpr bool kKnown = OutputTensors<Value>::kKnown;  // as its type
  // Appends the addresses of its tensors.
  static void collect(Map& values, std::vector<at::Tensor*>& all) {
    for (auto& [key, value] : values) OutputTensors<Value>::collect(value, all);
  }
};
// The tensors of a map.
template <typename Key, typename T>
struct OutputTensors<std::map<Key, T>> : MappedTensors<std::map<Key, T>> {};
// The tensors of a hash map.
template <typename Key, typename T>
struct OutputTensors<std::unordered_map<Key, T>> : MappedTensors<std::unordered_map<Key, T>> {};

}  // namespace ddprun
