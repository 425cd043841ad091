// The bytes of a pickle, taken from its start to its end, and the first error of its reader. After
// an error, values are 0 or empty, so that a reader need not look after each step. Pure.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace ddprun::worker {

class PickleBytes {
 public:
  explicit PickleBytes(std::span<const std::byte> pickle) : pickle_(pickle) {}

  const std::optional<Error>& error() const { return error_; }
  // The first one counts.
  void fail(std::string message, ErrorCode code = ErrorCode::kProtocol) {
    if (!error_) error_ = Error(code, std::move(message));
  }

  std::size_t at() const { return at_; }
  std::size_t left() const { return pickle_.size() - at_; }

  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > left()) {
      fail(fmt::format("{} bytes are expected, {} are left", count, left()));
      return {};
    }
    const auto bytes = pickle_.subspan(at_, count);
    at_ += count;
    return bytes;
  }

  // Little-endian.
  template <typename Number>
  Number take() {
    std::uint64_t number = 0;
    const auto bytes = take_bytes(sizeof(Number));
    for (std::size_t i = bytes.size(); i-- > 0;) {
      number = (number << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
    }
    return static_cast<Number>(number);
  }

  std::string take_text(std::size_t count) {
    const auto bytes = take_bytes(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // Without its end.
  std::string take_line() {
    constexpr std::size_t kMaxLineBytes = 256;
    std::string line;
    while (!error_) {
      const char character = static_cast<char>(take<std::uint8_t>());
      if (character == '\n') return line;
      line += character;
      if (line.size() > kMaxLineBytes) fail("the name of a global is too long");
    }
    return {};
  }

 private:
  std::span<const std::byte> pickle_;
  std::size_t at_ = 0;
  std::optional<Error> error_;
};

}  // namespace ddprun::worker
