#include "base/number_ranges.h"

#include <fmt/format.h>

namespace ddprun {

std::string number_ranges(const std::vector<int>& ascending, std::string_view separator) {
  std::string text;
  for (std::size_t from = 0; from < ascending.size();) {
    // [from, to] grows to one whole run of neighbours.
    std::size_t to = from;
    while (to + 1 < ascending.size() && ascending[to + 1] == ascending[to] + 1) ++to;
    if (!text.empty()) text += separator;
    text += to == from ? fmt::format("{}", ascending[from])
                       : fmt::format("{}-{}", ascending[from], ascending[to]);
    from = to + 1;
  }
  return text;
}

}  // namespace ddprun
