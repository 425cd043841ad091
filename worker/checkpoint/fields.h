// The fields of a dict of a checkpoint, and their names in messages. Pure.
#pragma once

#include <ddprun/value.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace ddprun::worker {

// The text for a message of one line: what is not printable is escaped, what is long is cut.
std::string printable(std::string_view text);
std::string printable_key(const Value::Key& key);

// Returns the error of a file or a value that is not accepted.
inline Error refused(std::string message) { return {ErrorCode::kProtocol, std::move(message)}; }

// Returns the value at the key of a dict. The error names the key and what was found.
template <typename Type>
Result<Type> field(const Value& dict, std::string_view key);
extern template Result<bool> field<bool>(const Value&, std::string_view);
extern template Result<std::int64_t> field<std::int64_t>(const Value&, std::string_view);
extern template Result<double> field<double>(const Value&, std::string_view);  // of an int, too
extern template Result<std::string> field<std::string>(const Value&, std::string_view);
Result<const Value*> field_value(const Value& dict, std::string_view key);

}  // namespace ddprun::worker
