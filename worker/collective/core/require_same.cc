#include <ddprun/metrics.h>
#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace ddprun {

// Every rank sees all numbers, so that all throw or none does. If only some threw, the others would
// wait for them in the next sum until the deadline.
void require_same(Collective& ranks, std::uint64_t mine, std::string_view what) {
  const auto all = ranks.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw std::runtime_error(fmt::format("{}: rank {} differs from rank 0", what, rank));
    }
  }
}

}  // namespace ddprun
