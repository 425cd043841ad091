// Makes texts of others safe to read. A text of others passes here before it stands in a line of
// ours. They are peers, workers, operators and names of hosts. That may be on a console, in a log,
// in a table, or in an error. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// The most bytes of one text of others in a line of ours.
inline constexpr std::size_t kShownBytes = 4096;

namespace of_text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

inline unsigned byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
}

// The number of a character of three bytes, which is where all separators and marks lie.
inline unsigned code_of_three(std::string_view text) {
  return ((byte_at(text, 0) & 0x0FU) << 12U) | ((byte_at(text, 1) & 0x3FU) << 6U) |
         (byte_at(text, 2) & 0x3FU);
}

// Marks of direction (Unicode 15, UAX 9), separators of lines and paragraphs, characters without
// width, and the byte order mark.
inline bool is_mark(unsigned code) {
  return (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2060 && code <= 0x2069) || code == 0xFEFF;
}

// The length of the UTF-8 sequence that this first byte announces; 0: it begins none.
inline std::size_t announced_length(unsigned first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  if (first < 0xE0) return 2;
  return first < 0xF0 ? 3 : 4;
}

// Returns whether a sequence may go on so. Overlong forms, surrogates and what lies beyond U+10FFFF
// differ in the second byte.
inline bool is_second_of(unsigned first, unsigned second) {
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace of_text

// The length of the UTF-8 sequence that `text` begins with; 0: it is ill-formed, or there is none.
inline std::size_t utf8_sequence(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned first = of_text::byte_at(text, 0);
  const std::size_t length = of_text::announced_length(first);
  if (length > 1 && !of_text::is_second_of(first, of_text::byte_at(text, 1))) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((of_text::byte_at(text, i) & 0xC0U) != 0x80U) return 0;
  return length;
}

// The length of what `text` begins with, if a terminal obeys it and does not show it. It may be a
// control character of ASCII or C1, a separator of lines, or a mark of direction. 0: it is shown.
inline std::size_t unshown_sequence(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned first = of_text::byte_at(text, 0);
  if (first < ' ' || first == 0x7F) return 1;
  if (first == 0xC2 && of_text::byte_at(text, 1) >= 0x80 && of_text::byte_at(text, 1) < 0xA0)
    return 2;                                                        // C1
  if (first == 0xD8 && of_text::byte_at(text, 1) == 0x9C) return 2;  // U+061C, a mark of direction
  return utf8_sequence(text) == 3 && of_text::is_mark(of_text::code_of_three(text)) ? 3 : 0;
}

// `text` as one piece of one line: valid UTF-8, a blank for each unshown sequence. Each byte that
// is no UTF-8 becomes U+FFFD. At most `most` bytes and then "…". So nobody but us ends a line,
// and no line begins with another's prefix.
inline std::string shown_text(std::string_view text, std::size_t most = kShownBytes) {
  std::string shown;
  shown.reserve(std::min(text.size(), most));
  while (!text.empty()) {
    const std::size_t unshown = unshown_sequence(text);
    const std::size_t length = unshown > 0 ? unshown : utf8_sequence(text);
    const std::string_view next = unshown > 0   ? " "
                                  : length == 0 ? of_text::kReplacement
                                                : text.substr(0, length);
    if (shown.size() + next.size() > most) return shown + "…";
    shown += next;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

}  // namespace ddprun
