#include "agent/report/error_record.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/numbers.h"

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

// The most arrays and objects inside each other. dump() calls itself for each, and a program may
// write a file of brackets alone: the stack must not end.
constexpr int kMaxDepth = 100;
// The seconds of a record are whole ones of 64 bits; a double may be anything.
constexpr double kMaxSeconds = 9e18;

std::optional<std::int64_t> whole_seconds(double seconds) {
  if (!(std::abs(seconds) <= kMaxSeconds)) return std::nullopt;
  return static_cast<std::int64_t>(seconds);
}

// A number, or a text that starts with one: `@record` writes the seconds as text.
std::optional<std::int64_t> seconds_of(const Json& value) {
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return whole_seconds(value.get<double>());
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  return leading_number<std::int64_t>(text);
}

// A text as it is, anything else as JSON. dump() throws on bytes that are no UTF-8, hence
// `replace`: programs may write any bytes.
std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The JSON of an error file, without exceptions. Nothing if it has no "message": torchrun demands
// one, too.
std::optional<Json> parse(std::string_view text) {
  if (text.size() > kMaxErrorRecordBytes) return std::nullopt;
  bool is_too_deep = false;
  const Json::parser_callback_t look = [&](int depth, Json::parse_event_t /*event*/,
                                           const Json& /*value*/) {
    is_too_deep = is_too_deep || depth > kMaxDepth;
    return !is_too_deep;
  };
  Json json = Json::parse(text, look, false);
  if (is_too_deep || json.is_discarded() || !json.is_object() || !json.contains("message"))
    return std::nullopt;
  return json;
}

}  // namespace

std::optional<ErrorRecord> parse_error_record(std::string_view json) {
  const auto file = parse(json);
  if (!file) return std::nullopt;
  const Json& message = file->at("message");
  ErrorRecord record;
  if (!message.is_object()) {  // the second form
    record.message = text_of(message);
    if (file->contains("timestamp")) record.unix_seconds = seconds_of(file->at("timestamp"));
    return record;
  }
  if (message.contains("message")) record.message = text_of(message.at("message"));
  if (!message.contains("extraInfo") || !message.at("extraInfo").is_object()) return record;
  const Json& extra = message.at("extraInfo");
  if (extra.contains("py_callstack")) record.trace = text_of(extra.at("py_callstack"));
  if (extra.contains("timestamp")) record.unix_seconds = seconds_of(extra.at("timestamp"));
  return record;
}

std::string write_error_record(const ErrorRecord& record) {
  const Json file = {{"message",
                      {{"message", record.message},
                       {"extraInfo",
                        {{"py_callstack", record.trace},
                         {"timestamp", std::to_string(record.unix_seconds.value_or(0))}}}}}};
  return file.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// torchrun overwrites the code because a worker cannot know it when a signal kills it.
std::string with_error_code(const std::string& json, int exit_code) {
  auto file = parse(json);
  if (!file || !file->at("message").is_object()) return json;
  (*file)["message"]["errorCode"] = exit_code;
  return file->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ddprun::agent
