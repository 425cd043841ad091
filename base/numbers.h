// Numbers in texts, for all rooms. No locale, no blanks, no '+'; '-' for signed types alone.
// Nothing if there is no number, or if it does not fit the type. Pure; any thread.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ddprun {

// The number that the text begins with: "65536kB" has one.
template <typename Number>
std::optional<Number> leading_number(std::string_view text) {
  Number value{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  return value;
}

// The number that is the whole text: "4x" and "" are none. A floating-point type takes "nan" and
// "inf" as well.
template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace ddprun
