// What every shell needs around its one Asio loop: starting a coroutine under a name, and
// deadlines. Shells only; cores know no loop. Everything here runs on the loop's thread.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace ddprun {

namespace asio = boost::asio;

// Completion token of every awaited operation: the error is a value, not an exception.
inline constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

// Starts `task` on `loop`. An exception that escapes the task comes out of loop.run() after the
// task's name was printed: never a silent death (asio::detached would swallow it).
inline void spawn(asio::io_context& loop, std::string name, asio::awaitable<void> task) {
  asio::co_spawn(loop, std::move(task),
                 [name = std::move(name)](const std::exception_ptr& escaped) {
                   if (!escaped) return;
                   std::fprintf(stderr, "ddprun: task %s ended by an exception\n", name.c_str());
                   std::rethrow_exception(escaped);
                 });
}

// Completes when `limit` has passed; use as `co_await (read(...) || expires(timer, limit))`. After
// a timeout close the connection: the losing operation was cancelled in the middle of a frame.
inline asio::awaitable<void> expires(asio::steady_timer& timer, std::chrono::nanoseconds limit) {
  timer.expires_after(limit);
  co_await timer.async_wait(kAsTuple);
}

}  // namespace ddprun
