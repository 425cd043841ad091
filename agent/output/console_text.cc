#include "agent/output/console_text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ddprun::agent {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns a number from 0 to 255. `char` is signed on x86, so bytes from 0x80 on would be negative.
unsigned byte_at(std::string_view text, std::size_t index) {
  return static_cast<unsigned char>(text[index]);
}

// Returns how many bytes at the beginning are ASCII. It takes eight bytes a step, because nearly
// all output is ASCII and all of it passes here.
std::size_t ascii_length(std::string_view text) {
  std::size_t at = 0;
  while (text.size() - at >= sizeof(std::uint64_t)) {
    std::uint64_t eight = 0;
    // A copy, because the text may begin at any address and a uint64_t may not.
    std::memcpy(&eight, text.data() + at, sizeof(eight));
    if ((eight & 0x8080808080808080U) != 0) break;
    at += sizeof(eight);
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

// The first byte of a character, and its meaning (Unicode 15, table 3-7). The bounds of the second
// byte exclude overlong forms, surrogates and what is above U+10FFFF.
struct Lead {
  std::size_t length;  // bytes of the character; 0: no character begins so
  unsigned low;        // bounds of the second byte
  unsigned high;
};

Lead lead(unsigned byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

enum class Form { kWhole, kCutOff, kBroken };
struct Character {
  Form form;
  std::size_t bytes;  // that belong together; if broken, one U+FFFD stands for all of them
};

// Looks at the first character of `text`, which must not be empty and must not begin with ASCII.
Character first_character(std::string_view text) {
  const Lead begin = lead(byte_at(text, 0));
  if (begin.length == 0) return {Form::kBroken, 1};
  for (std::size_t at = 1; at < begin.length; ++at) {
    if (at == text.size()) return {Form::kCutOff, at};
    const unsigned low = at == 1 ? begin.low : 0x80;
    const unsigned high = at == 1 ? begin.high : 0xBF;
    if (byte_at(text, at) < low || byte_at(text, at) > high) return {Form::kBroken, at};
  }
  return {Form::kWhole, begin.length};
}

}  // namespace

std::size_t append_utf8(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::size_t ascii = ascii_length(text);
    out += text.substr(0, ascii);
    text.remove_prefix(ascii);
    if (text.empty()) return 0;
    const Character next = first_character(text);
    if (next.form == Form::kCutOff) return next.bytes;
    out += next.form == Form::kWhole ? text.substr(0, next.bytes) : kReplacement;
    text.remove_prefix(next.bytes);
  }
  return 0;
}

void append_whole_utf8(std::string& out, std::string_view text) {
  if (append_utf8(out, text) != 0) out += kReplacement;
}

std::string_view last_update(std::string_view line) {
  // A bar often ends with '\r', and "\r\n" does too: nothing has overwritten the line yet.
  const std::size_t end = line.find_last_not_of('\r');
  if (end == std::string_view::npos) return {};
  line = line.substr(0, end + 1);
  const std::size_t before = line.rfind('\r');
  return before == std::string_view::npos ? line : line.substr(before + 1);
}

std::vector<std::string> last_lines(std::string_view text, std::size_t count) {
  std::vector<std::string> lines;
  // The newline at the end ends the last line. It does not begin another, empty one.
  if (text.ends_with('\n')) text.remove_suffix(1);
  while (lines.size() < count && !text.empty()) {
    const std::size_t newline = text.rfind('\n');
    const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    append_whole_utf8(lines.emplace_back(), last_update(text.substr(begin)));
    text = text.substr(0, begin == 0 ? 0 : newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace ddprun::agent
