// Refusals, in one line, of what does not fit a group of ranks. This rank alone.
#pragma once

#include <ddprun/tensor_parallel.h>
#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace ddprun::worker {

// Throws std::invalid_argument with that message unless `fits`.
template <typename... Arguments>
void require(bool fits, fmt::format_string<Arguments...> message, Arguments&&... arguments) {
  if (!fits)
    throw std::invalid_argument(fmt::format(message, std::forward<Arguments>(arguments)...));
}

// Throws std::invalid_argument unless the ranks divide `size`; `what` has its name.
inline void require_divided(std::string_view layer, std::string_view what, std::int64_t size,
                            const TensorGroup& group) {
  require(size % group.size() == 0, "{}: {} {} given, expected a multiple of the group's {} ranks",
          layer, what, size, group.size());
}

}  // namespace ddprun::worker
