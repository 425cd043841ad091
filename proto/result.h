// Result<T>: a value or an Error, for I/O and parsing. C++20 has no std::expected, so this is
// Boost.System's result with our Error. Cores never throw; what fails returns an Error that says
// what was attempted, on what, and what happened.
#pragma once

#include <boost/system/result.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun {

// What kind of failure it was, for callers that act on it; the message is for people.
enum class ErrorCode {
  kInvalidArgument,  // the caller's or the user's value is wrong
  kNotFound,         // a file, host or key that should be there is not
  kUnavailable,      // a peer refused, vanished or could not be reached
  kTimedOut,         // a deadline passed
  kProtocol,         // a peer's bytes make no sense
  kLimit,            // a bound (length, count) would be passed
  kRejected,         // a peer understood and said no
  kSystem,           // a system call failed
};

// Not an aggregate on purpose: `return 3;` must not turn into an Error.
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

template <typename T>
using Result = boost::system::result<T, Error>;

// Found by Boost.System through argument-dependent lookup when value() is called on an Error.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location& /*where*/) {
  throw std::runtime_error(error.message());
}

}  // namespace ddprun
