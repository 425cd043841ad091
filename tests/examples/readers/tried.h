// A reader's value, or its error as a value.
#pragma once

#include <ddprun/readers.h>

#include <type_traits>

#include "base/result.h"

namespace ddprun::readers {

template <typename Read>
auto tried(Read read) -> Result<decltype(read())> {
  try {
    if constexpr (std::is_void_v<decltype(read())>) {
      read();
      return {};
    } else {
      return read();
    }
  } catch (const ReadError& error) {
    return Error(ErrorCode::kSystem, error.what());
  }
}

}  // namespace ddprun::readers
