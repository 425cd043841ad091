// Runs the loop until a console's flush() is over, as the launcher's end does.
#pragma once

#include <chrono>

#include "agent/console.h"

namespace ddprun::agent {

inline void flush(asio::io_context& loop, Console& console,
                  std::chrono::milliseconds limit = kFlushLimit) {
  bool over = false;
  const auto wait = [&]() -> asio::awaitable<void> {
    co_await console.flush(limit);
    over = true;
  };
  spawn(loop, "flush", wait());
  loop.restart();
  while (!over) loop.run_one();
}

}  // namespace ddprun::agent
