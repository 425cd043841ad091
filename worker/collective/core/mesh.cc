#include <ddprun/collective.h>
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "worker/collective/core/mesh_places.h"

namespace ddprun {

Mesh::Mesh(Collective& ranks, std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  worker::check_axes(axes_, ranks.world_size());
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const worker::SplitRequest place = worker::mesh_place(axes_, axis, ranks.rank());
    groups_.push_back(ranks.split(place.color, place.key));
  }
}

Collective& Mesh::along(std::string_view axis) const {
  std::string names;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return *groups_[i];
    names += (names.empty() ? "" : ", ") + axes_[i].name;
  }
  throw std::invalid_argument(fmt::format("Mesh: axis '{}' given, expected {}", axis, names));
}

}  // namespace ddprun
