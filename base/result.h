// Result<T>: a value or an Error, for everything that can fail: I/O, parsing, limits. C++20 has no
// std::expected, so this is Boost.System's result with our Error in it. Pure cores never throw. An
// Error says what was attempted, on what, and what happened. Ask has_value() or has_error() before
// you take the value. Plain values without shared state: any thread.
#pragma once

#include <boost/system/result.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun {

// The kind of failure. Callers decide by the code; the message is for people. The host sends the
// code to nodes by number (Refused in rendezvous.proto). So add new codes at the end and never
// change the order.
enum class ErrorCode {
  kInvalidArgument,  // the caller's or the user's value is wrong
  kNotFound,         // a file, host or key that should be there is not
  kUnavailable,      // a peer refused, vanished or could not be reached
  kTimedOut,         // a deadline passed
  kProtocol,         // a peer's bytes make no sense
  kLimit,            // a bound (length, count) would be passed
  kRejected,         // a peer understood and said no
  kSystem,           // a system call failed
  kLostLeadership,   // who leads the rendezvous leads it no more; another will
};

// A class with constructors and not a plain struct: `return 3;` must not turn into an Error.
class Error {
 public:
  Error() = default;
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  bool operator==(const Error&) const = default;

 private:
  ErrorCode code_ = ErrorCode::kSystem;
  std::string message_;
};

// `*result` is only for results with a value; on an Error it is undefined.
template <typename T>
using Result = boost::system::result<T, Error>;

// Boost.System calls this when value() is called on an Error. It finds the function by
// argument-dependent lookup, so name and namespace must stay.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location& /*where*/) {
  throw std::runtime_error(error.message());
}

}  // namespace ddprun
