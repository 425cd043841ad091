// Runs the loop until a console's flush() is over, as the launcher's end does.
#pragma once

#include <chrono>

#include "agent/output/console.h"

namespace ddprun::agent {

inline asio::awaitable<void> flush_and_stop(asio::io_context* loop, Console* console,
                                            std::chrono::milliseconds limit) {
  co_await console->flush(limit);
  loop->stop();
}

inline void flush(asio::io_context& loop, Console& console,
                  std::chrono::milliseconds limit = kFlushLimit) {
  spawn(loop, "flush", flush_and_stop(&loop, &console, limit));
  loop.restart();
  loop.run();
}

}  // namespace ddprun::agent
