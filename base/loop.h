// Helpers of every shell (the code around a pure core that does its I/O) for its one Asio loop.
// They start a coroutine under a name, and set time limits. Pure cores must not include this file:
// they know no loop and no clock. Everything here runs on the loop's thread.
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

// Completion token of every operation that we await. The error is then the first value of the
// result and is not thrown.
inline constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

// Starts `task` on `loop`. Nobody waits for it, so it must keep alive what it uses. If an exception
// leaves the task, its `name` is printed and loop.run() throws the exception. asio::detached would
// drop the exception, and the task would be gone without a word.
inline void spawn(asio::io_context& loop, std::string name, asio::awaitable<void> task) {
  asio::co_spawn(loop, std::move(task),
                 [name = std::move(name)](const std::exception_ptr& escaped) {
                   if (!escaped) return;
                   std::fprintf(stderr, "ddprun: task %s ended by an exception\n", name.c_str());
                   std::rethrow_exception(escaped);
                 });
}

// Completes when `limit` has passed, or as soon as somebody cancels `timer`. Use it as
// `co_await (read(...) || expires(timer, limit))`: the first to complete cancels the other. After a
// time-out close the connection. The read was cancelled in the middle of a frame. A new read would
// take the rest of it for a frame of its own.
inline asio::awaitable<void> expires(asio::steady_timer& timer, std::chrono::nanoseconds limit) {
  timer.expires_after(limit);
  co_await timer.async_wait(kAsTuple);
}

}  // namespace ddprun
