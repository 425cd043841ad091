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

// Finds the tensors in a value of type T. A type of the program that holds tensors specialises it.
// It has kKnown = true and a collect() that appends the address of each of them.
template <typename T>
struct OutputTensors {
  static constexpr bool kKnown = false;
};

template <>
struct OutputTensors<at::Tensor> {
  static constexpr bool kKnown = true;
  static void collect(at::Tensor& tensor, std::vector<at::Tensor*>& all) { all.push_back(&tensor); }
};

template <typename... T>
struct OutputTensors<std::tuple<T...>> {
  static constexpr bool kKnown = (OutputTensors<T>::kKnown && ...);
  static void collect(std::tuple<T...>& values, std::vector<at::Tensor*>& all) {
    std::apply([&](T&... value) { (OutputTensors<T>::collect(value, all), ...); }, values);
  }
};

template <typename First, typename Second>
struct OutputTensors<std::pair<First, Second>> {
  static constexpr bool kKnown = OutputTensors<First>::kKnown && OutputTensors<Second>::kKnown;
  static void collect(std::pair<First, Second>& values, std::vector<at::Tensor*>& all) {
    OutputTensors<First>::collect(values.first, all);
    OutputTensors<Second>::collect(values.second, all);
  }
};

template <typename T>
struct OutputTensors<std::optional<T>> {
  static constexpr bool kKnown = OutputTensors<T>::kKnown;
  static void collect(std::optional<T>& value, std::vector<at::Tensor*>& all) {
    if (value) OutputTensors<T>::collect(*value, all);
  }
};

// A list of values.
template <typename List>
struct ListedTensors {
  using Value = typename List::value_type;
  static constexpr bool kKnown = OutputTensors<Value>::kKnown;
  static void collect(List& values, std::vector<at::Tensor*>& all) {
    for (Value& value : values) OutputTensors<Value>::collect(value, all);
  }
};
template <typename T>
struct OutputTensors<std::vector<T>> : ListedTensors<std::vector<T>> {};
template <typename T, std::size_t kCount>
struct OutputTensors<std::array<T, kCount>> : ListedTensors<std::array<T, kCount>> {};

// Values by key.
template <typename Map>
struct MappedTensors {
  using Value = typename Map::mapped_type;
  static constexpr bool kKnown = OutputTensors<Value>::kKnown;
  static void collect(Map& values, std::vector<at::Tensor*>& all) {
    for (auto& [key, value] : values) OutputTensors<Value>::collect(value, all);
  }
};
template <typename Key, typename T>
struct OutputTensors<std::map<Key, T>> : MappedTensors<std::map<Key, T>> {};
template <typename Key, typename T>
struct OutputTensors<std::unordered_map<Key, T>> : MappedTensors<std::unordered_map<Key, T>> {};

}  // namespace ddprun
