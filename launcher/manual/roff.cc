#include "launcher/manual/roff.h"

#include <fmt/format.h>

#include <bit>

namespace ddprun::launcher {
namespace {

// Names a character that roff shows as another one, or takes for itself. Empty if the character
// stands as it is.
std::string_view name_of(char c) {
  switch (c) {
    case '-':
      return "\\-";
    case '\\':
      return "\\e";
    case '\'':
      return "\\(aq";
    case '`':
      return "\\(ga";
    case '^':
      return "\\(ha";
    case '~':
      return "\\(ti";
    default:
      return {};
  }
}

// The character that begins with `text[0]`, which is not ASCII, and how many bytes it takes.
struct Character {
  unsigned long code = 0xFFFD;
  std::size_t bytes = 1;
};

Character first_character(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const auto size = static_cast<std::size_t>(std::countl_one(byte(0)));
  if (size < 2 || size > 4 || size > text.size()) return {};
  unsigned long code = byte(0) & (0x7FU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  return {code, size};
}

}  // namespace

std::string roff(std::string_view text) {
  std::string escaped;
  bool line_begins = true;
  while (!text.empty()) {
    const char c = text.front();
    std::size_t taken = 1;
    if (line_begins && (c == '.' || c == '\'')) escaped += "\\&";
    line_begins = c == '\n';
    if (const auto name = name_of(c); !name.empty()) {
      escaped += name;
    } else if (static_cast<unsigned char>(c) < 0x80) {
      escaped += c;
    } else {
      const Character character = first_character(text);
      escaped += fmt::format("\\[u{:04X}]", character.code);
      taken = character.bytes;
    }
    text.remove_prefix(taken);
  }
  return escaped;
}

}  // namespace ddprun::launcher
