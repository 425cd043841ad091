// The error file of a worker, which TORCHELASTIC_ERROR_FILE names. `@record` writes it when an
// exception leaves the program, and torchrun reads it (torch/distributed/elastic/multiprocessing/
// errors/ of 2.11). These functions turn its text into a record and back; they open no file. A text
// in none of the known forms counts as no record. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// An error file longer than this is not read: the program chooses its length, we hold it in memory.
inline constexpr std::size_t kMaxErrorRecordBytes = std::size_t{4} << 20;

struct ErrorRecord {
  std::string message;  // "ValueError: text", or the program's own words
  std::string trace{};  // Python's traceback, many lines; empty if there is none
  std::optional<std::int64_t> unix_seconds{};  // when it failed, as the worker wrote it

  bool operator==(const ErrorRecord&) const = default;
};

// Reads both forms of the file:
//   {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}
//   {"message": …, "timestamp": …}
// Every field but the outer "message" may be missing. Returns nothing for any other text.
std::optional<ErrorRecord> parse_error_record(std::string_view json);

// The text of an error file for a worker that wrote none, in the first form. Bytes that are no
// UTF-8 become U+FFFD.
std::string write_error_record(const ErrorRecord& record);

// Returns `json`, an error file in the first form, with message.errorCode set to `exit_code`. Any
// other text comes back unchanged. torchrun sets this field in the copy that it writes to its own
// TORCHELASTIC_ERROR_FILE (error_handler.py 2.11, dump_error_file).
std::string with_error_code(const std::string& json, int exit_code);

}  // namespace ddprun::agent
