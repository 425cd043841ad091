// The common parts of the benchmark programs. They print figures for the scripts of this folder,
// and end when their script closes their stdin.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdio>
#include <string_view>

namespace ddprun::bench {

using Clock = std::chrono::steady_clock;

// Prints one line, `name value`, at once.
inline void tell(std::string_view name, double value) {
  fmt::print("{} {:.8g}\n", name, value);
  std::fflush(stdout);
}

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Runs `loop` until our stdin is closed.
inline void run_until_input_ends(boost::asio::io_context& loop) {
  boost::asio::posix::stream_descriptor input(loop, STDIN_FILENO);
  char byte = 0;
  input.async_read_some(boost::asio::buffer(&byte, 1),
                        [&](const boost::system::error_code&, std::size_t) { loop.stop(); });
  loop.restart();
  loop.run();
}

}  // namespace ddprun::bench
