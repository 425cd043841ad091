#include "worker/collective/core/mesh_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ddprun::worker {

void check_axes(std::span<const MeshAxis> axes, int ranks) {
  long long product = 1;
  std::string text;
  for (const MeshAxis& axis : axes) {
    const auto same = [&](const MeshAxis& other) { return other.name == axis.name; };
    if (axis.name.empty() || axis.ranks < 1 || std::ranges::count_if(axes, same) > 1)
      throw std::invalid_argument(
          fmt::format("Mesh: axis {}={} given, expected a name of its own and 1 or more ranks",
                      axis.name, axis.ranks));
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.ranks);
    product = std::min<long long>(product * axis.ranks, 1LL << 31);
  }
  if (axes.empty() || product != ranks)
    throw std::invalid_argument(fmt::format(
        "Mesh: axes '{}' given, expected some whose product is the {} ranks", text, ranks));
}

SplitRequest mesh_place(std::span<const MeshAxis> axes, std::size_t axis, int rank) {
  int behind = 1;  // ranks from one place along the axis to the next one
  for (const MeshAxis& other : axes.subspan(axis + 1)) behind *= other.ranks;
  const int place = rank / behind % axes[axis].ranks;
  return {.color = rank - place * behind, .key = place};
}

}  // namespace ddprun::worker
