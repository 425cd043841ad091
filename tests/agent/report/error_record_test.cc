// A worker's error file: what others write, and what we do.
#include "agent/report/error_record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::agent {
namespace {

TEST(ErrorRecord, ReadsWhatRecordWrites) {
  const auto record =
      parse_error_record(R"({"message": {"message": "ValueError: x", "extraInfo":)"
                         R"( {"py_callstack": "Trace", "timestamp": "1700000000"}}})");
  EXPECT_EQ(record, (ErrorRecord{"ValueError: x", "Trace", 1700000000}));
}

TEST(ErrorRecord, ReadsTheShortForm) {
  EXPECT_EQ(parse_error_record(R"({"message":"text","timestamp":1700000000})"),
            (ErrorRecord{"text", "", 1700000000}));
  EXPECT_EQ(parse_error_record(R"({"message":"text"})"), (ErrorRecord{"text", "", {}}));
}

TEST(ErrorRecord, AnythingElseIsNoRecord) {
  for (const char* text : {"", "garbage", "[]", "{}", "{\"message\"", "\xff\xfe"})
    EXPECT_EQ(parse_error_record(text), std::nullopt) << text;
  EXPECT_EQ(parse_error_record(R"({"message": {}})"), ErrorRecord{});
  EXPECT_EQ(parse_error_record(R"({"message": {"extraInfo": 3}})"), ErrorRecord{});
  EXPECT_EQ(parse_error_record("{\"message\":\"" + std::string(kMaxErrorRecordBytes, 'x') + "\"}"),
            std::nullopt);
}

TEST(ErrorRecord, SurvivesAFileOfBracketsAlone) {
  const std::string open(1'000'000, '['), shut(1'000'000, ']');
  const std::string deep = "{\"message\":" + open + shut + "}";
  EXPECT_EQ(parse_error_record(deep), std::nullopt);
  EXPECT_EQ(with_error_code(deep, 1), deep);
  EXPECT_EQ(parse_error_record(R"({"message": [[1, {"a": 2}]]})")->message, R"([[1,{"a":2}]])");
}

TEST(ErrorRecord, TakesATimeThatNoClockShowsForNone) {
  for (const char* seconds : {"1e300", "-1e300", "9.3e18"})
    EXPECT_EQ(parse_error_record(fmt::format(R"({{"message":"m","timestamp":{}}})", seconds)),
              (ErrorRecord{"m", "", {}}));
}

TEST(ErrorRecord, WhatWeWriteCanBeReadAndGetsTheExitCode) {
  const ErrorRecord record{"died", "", 12};
  const std::string json = write_error_record(record);
  EXPECT_EQ(parse_error_record(json), record);
  EXPECT_EQ(nlohmann::json::parse(with_error_code(json, -9))["message"]["errorCode"], -9);
  EXPECT_EQ(with_error_code(R"({"message":"text"})", 1), R"({"message":"text"})");
}

}  // namespace
}  // namespace ddprun::agent
