// The flag --mesh of gpt: the axes of the workers' grid, as "data=2,tensor=2". Pure.
#pragma once

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/numbers.h"

namespace ddprun::examples {

inline constexpr std::string_view kAxes[] = {"data", "sharded", "tensor", "pipeline"};
inline constexpr std::string_view kAcceptedMesh =
    "AXIS=N,… of data or sharded, tensor and pipeline, each once, with N from 1 to 1024";

// The axes in the order in which they were given. The last one is that of neighbours.
struct MeshFlag {
  std::string text;  // empty: data parallel alone
  std::vector<MeshAxis> axes;

  // The ranks of an axis; 1 if it was not given.
  int along(std::string_view name) const {
    const auto found = std::ranges::find(axes, name, &MeshAxis::name);
    return found == axes.end() ? 1 : found->ranks;
  }
  bool has(std::string_view name) const {
    return std::ranges::find(axes, name, &MeshAxis::name) != axes.end();
  }
  int workers() const {
    int product = 1;
    for (const MeshAxis& axis : axes) product *= axis.ranks;
    return product;
  }
  // All axes, as Mesh wants them: those that were not given have one rank.
  std::vector<MeshAxis> all_axes() const {
    std::vector<MeshAxis> all;
    for (const std::string_view name : kAxes)
      if (!has(name)) all.push_back({std::string(name), 1});
    all.insert(all.end(), axes.begin(), axes.end());
    return all;
  }
};

// Adds an axis, "tensor=2". False: no such axis, one that is there already, or no number from 1 to
// 1,024.
inline bool add_axis(MeshFlag& mesh, std::string_view text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals);
  const auto ranks = parse_whole<int>(text.substr(std::min(equals + 1, text.size())));
  if (std::ranges::find(kAxes, name) == std::end(kAxes) || mesh.has(name)) return false;
  if (!ranks || *ranks < 1 || *ranks > 1024) return false;
  mesh.axes.push_back({std::string(name), *ranks});
  return true;
}

// Reads the flag. False: it is not accepted.
inline bool read_mesh(MeshFlag& mesh, std::string_view text) {
  mesh = {std::string(text), {}};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (!add_axis(mesh, text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return !mesh.has("sharded") || !mesh.has("data");
}

}  // namespace ddprun::examples
