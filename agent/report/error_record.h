// The error file of a worker (TORCHELASTIC_ERROR_FILE): what `@record` writes on an uncaught
// exception and what torchrun reads (torch/distributed/elastic/multiprocessing/errors/ 2.11). Pure
// text in and out; a file that is none of its forms is as good as none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// An error file longer than this is not read.
inline constexpr std::size_t kMaxErrorRecordBytes = std::size_t{4} << 20;

struct ErrorRecord {
  std::string message;                         // "ValueError: text", or the whole message
  std::string trace{};                         // Python's, many lines; empty without one
  std::optional<std::int64_t> unix_seconds{};  // when, by the worker's own account

  bool operator==(const ErrorRecord&) const = default;
};

// Both forms: {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}} and
// {"message": …, "timestamp": …}. Nothing for anything else.
std::optional<ErrorRecord> parse_error_record(std::string_view json);

// The file for a worker that wrote none, in the first form.
std::string write_error_record(const ErrorRecord& record);

// `json` with message.errorCode set, where its message is an object; else unchanged. torchrun does
// so for the copy that its own TORCHELASTIC_ERROR_FILE gets.
std::string with_error_code(const std::string& json, int exit_code);

}  // namespace ddprun::agent
